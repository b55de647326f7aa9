//! Parser of the first lines that `top` printed, also in quoted mail.

use linerate_sys::{Code, Error, Result};

use super::{Cpu, Head, Mem, Processes, Swap};
use crate::read::lines::{COMPLAINTS_KEPT, Complaint, unquoted};

/// Most heads that are read from one text; reading stops with a complaint at the next one.
const HEADS_MAX: usize = 1000;

/// A parsed value, or the reason why it is invalid.
type Parsed<T> = std::result::Result<T, String>;

impl Head {
    /// Returns the first head in a text.
    ///
    /// # Errors
    /// `E-FILE` if there is none, or what looks like one is not understood; says in which line.
    pub fn parse(text: &str) -> Result<Head> {
        let (heads, complaints) = Head::all(text);
        heads.first().copied().ok_or_else(|| {
            let none = || "no line says `N processes: N sleeping, …`".into();
            let why = complaints.first().map_or_else(none, ToString::to_string);
            Error::new(Code::File, "cannot read the head of top", why)
        })
    }

    /// Returns every head in a text, and a complaint on each that looks like one but is invalid.
    /// Other lines may precede and follow a head, but only blank ones may be inside it.
    #[must_use]
    pub fn all(text: &str) -> (Vec<Head>, Vec<Complaint>) {
        let (mut heads, mut complaints) = (Vec::new(), Vec::new());
        let lines = text.lines().map(unquoted).zip(1..).filter(|(line, _)| !line.is_empty());
        let lines: Vec<(&str, u64)> = lines.collect();
        let is_first = |line: &str| {
            line.split_once(" processes:").is_some_and(|(n, _)| n.parse::<u64>().is_ok())
        };
        for at in (0..lines.len()).filter(|at| is_first(lines[*at].0)) {
            match head(&lines[at..]) {
                Ok(_) if heads.len() == HEADS_MAX => {
                    let why = format!("more than {HEADS_MAX} heads");
                    complaints.push(Complaint::new(lines[at].1, &why));
                    break;
                }
                Ok(head) => heads.push(head),
                Err(complaint) if complaints.len() < COMPLAINTS_KEPT => complaints.push(complaint),
                Err(_) => {}
            }
        }
        (heads, complaints)
    }
}

/// Returns the head that begins with the first of `lines`, or the invalid line with its error.
fn head(lines: &[(&str, u64)]) -> std::result::Result<Head, Complaint> {
    let mut head = Head::default();
    for at in 0..4 {
        let Some((line, number)) = lines.get(at) else {
            let last = lines.last().map_or(1, |(_, number)| *number);
            return Err(Complaint::new(last, "a head ends before its line of swap"));
        };
        head.take(at, line).map_err(|why| Complaint::new(*number, &why))?;
    }
    Ok(head)
}

impl Head {
    fn take(&mut self, at: usize, line: &str) -> Parsed<()> {
        match at {
            0 => {
                // The total ends with a colon. Replace the colon by a comma, so that the total is a
                // pair like the states.
                let line = line.replacen(':', ",", 1);
                let names = ["processes", "sleeping", "running", "zombie", "stopped"];
                let [total, sleeping, running, zombie, stopped] = named(&pairs(&line, "")?, names)?;
                let states =
                    Processes { total, sleeping, running, zombie, stopped, some_hidden: false };
                self.processes = states;
            }
            1 => self.cpu = cpu(behind(line, "CPU states:")?)?,
            2 => {
                let known = line.replace("n/a shrd,", "");
                let pairs = pairs(behind(&known, "Mem:")?, "K")?;
                let names = ["av", "used", "free", "buff"];
                let [av_kb, used_kb, free_kb, buff_kb] = named(&pairs, names)?;
                let shrd = if known == line { Some(named(&pairs, ["shrd"])?) } else { None };
                let shrd_kb = shrd.map(|[shrd_kb]| shrd_kb);
                self.mem = Mem { av_kb, used_kb, free_kb, shrd_kb, buff_kb, cached_kb: 0 };
            }
            _ => {
                let names = ["av", "used", "free", "cached"];
                let [av_kb, used_kb, free_kb, cached_kb] =
                    named(&pairs(behind(line, "Swap:")?, "K")?, names)?;
                self.swap = Swap { av_kb, used_kb, free_kb };
                self.mem.cached_kb = cached_kb;
            }
        }
        Ok(())
    }
}

fn cpu(line: &str) -> Parsed<Cpu> {
    let pairs: Vec<(f64, &str)> = pairs(line, "%")?;
    if let Some((pct, what)) = pairs.iter().find(|(pct, _)| !(0.0..=1e6).contains(pct)) {
        return Err(format!("{pct}% {what} is no share"));
    }
    let [user_pct, system_pct, nice_pct, idle_pct] =
        named(&pairs, ["user", "system", "nice", "idle"])?;
    let [iowait_pct, irq_pct, softirq_pct, steal_pct] =
        ["iowait", "irq", "softirq", "steal"].map(|name| value(&pairs, name));
    let told = Cpu { user_pct, system_pct, nice_pct, idle_pct, ..Cpu::default() };
    Ok(Cpu { iowait_pct, irq_pct, softirq_pct, steal_pct, ..told })
}

fn behind<'a>(line: &'a str, label: &str) -> Parsed<&'a str> {
    line.strip_prefix(label).ok_or_else(|| format!("expected {label:?}"))
}

/// Parses `1K av, 2K used 3K free` into numbers with their words; `unit` is the suffix of a number.
fn pairs<'a, T: std::str::FromStr>(line: &'a str, unit: &str) -> Parsed<Vec<(T, &'a str)>> {
    let mut words = line.split([',', ' ', '\t']).filter(|word| !word.is_empty());
    let mut pairs = Vec::new();
    while let Some(word) = words.next() {
        let number = word.strip_suffix(unit).and_then(|number| number.parse().ok());
        let number = number.ok_or_else(|| format!("{word:?} is not a number with {unit:?}"))?;
        pairs.push((number, words.next().ok_or_else(|| format!("{word} of what?"))?));
    }
    Ok(pairs)
}

fn value<T: Copy>(pairs: &[(T, &str)], name: &str) -> Option<T> {
    pairs.iter().find(|(_, word)| *word == name).map(|(number, _)| *number)
}

fn named<T: Copy + Default, const N: usize>(
    pairs: &[(T, &str)],
    names: [&str; N],
) -> Parsed<[T; N]> {
    let mut values = [T::default(); N];
    for (to, name) in values.iter_mut().zip(names) {
        *to = value(pairs, name).ok_or_else(|| format!("no figure for {name}"))?;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POST: &str = include_str!("../../../../../tests/seeds/000_5d94cdb1dc74f564.txt");

    #[test]
    fn both_heads_of_the_post_are_read_and_printed_byte_for_byte() {
        let (heads, complaints) = Head::all(POST);
        let [before, after] = &heads[..] else { panic!("{heads:?}") };
        assert_eq!(complaints, []);
        for head in [before, after] {
            assert!(POST.contains(&format!("\n{head}\n")), "{head}");
        }
        assert_eq!((before.processes.total, after.processes.total), (52, 50));
        assert_eq!((before.cpu.system_pct, after.cpu.system_pct), (32.8, 27.5));
        assert_eq!((before.mem.cached_kb, after.mem.cached_kb), (46_596, 22_292));
        assert_eq!((before.cpu.softirq_pct, before.swap.used_kb), (None, 0));
        let quoted: String = POST.lines().map(|line| format!("> > {line}\n")).collect();
        assert_eq!(Head::all(&quoted).0, heads);
    }

    #[test]
    fn columns_of_blanks_and_later_kinds_of_time_are_understood() {
        let text = "52 processes: 51 sleeping, 1 running, 0 zombie, 0 stopped\n\
            CPU states:   1.5% user,  2.5% system,   0.0% nice,  95.5% idle, 0.5% iowait\n\
            Mem:   897904K av,  869248K used,   28656K free,       0K shrd,    3724K buff\n\
            Swap: 1052216K av,       0K used, 1052216K free                   46596K cached\n";
        let head = Head::parse(text).unwrap();
        assert_eq!((head.cpu.iowait_pct, head.cpu.irq_pct), (Some(0.5), None));
        assert_eq!(head.mem.cached_kb, 46_596);
        let json = serde_json::to_string(&head).unwrap();
        assert_eq!(serde_json::from_str::<Head>(&json).unwrap(), head);
    }

    #[test]
    fn a_broken_head_is_complained_of_by_its_line_and_the_next_is_read() {
        let whole = &Head::parse(POST).unwrap().to_string();
        let cut = whole.lines().take(2).collect::<Vec<_>>().join("\n");
        let (heads, complaints) = Head::all(&format!("{cut}\n{whole}"));
        assert_eq!((heads.len(), complaints.len(), complaints[0].line), (1, 1, 3));
        for (good, bad, line) in [
            ("1 running", "1 walking", 1),
            ("32.8%", "NaN%", 2),
            ("0K shrd", "0 shrd", 3),
            ("46596K cached", "46596K", 4),
        ] {
            let (heads, complaints) = Head::all(&whole.replace(good, bad));
            assert_eq!((heads.len(), complaints.len(), complaints[0].line), (0, 1, line), "{bad}");
        }
        let e = Head::parse("nothing of the kind").unwrap_err();
        assert_eq!(e.code, Code::File);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "((CPU states:|Mem:|Swap:|9 processes:|[0-9]{1,30}[K%,]? (av|used|user|free))|\\PC|\n){0,80}") {
            let _ = Head::all(&text);
        }
    }
}
