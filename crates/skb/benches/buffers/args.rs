//! The command line, in three forms: a table, one case (what the table's children run), a smoke
//! test.

use std::time::Duration;

use linerate_skb::{Data, Init, Local, Pool, Return};
use linerate_sys::thread;

use crate::cases::{CASES, Case};

/// What to do.
pub enum Command {
    /// One case in this process, and one line about it.
    Once(Once),
    /// How this program was built.
    About,
    /// Every case, briefly.
    Smoke,
    /// The table.
    Measure(Plan),
}

/// One case, so many times.
pub struct Once {
    pub case: &'static Case,
    pub bursts: u64,
    pub reps: usize,
    pub options: Options,
}

/// What a table is made of.
pub struct Plan {
    pub cases: Vec<&'static Case>,
    /// Pairs of samples a case, each with the stack somewhere else.
    pub rounds: usize,
    pub reps: usize,
    /// No round begins later than this after the start, unless the rounds were asked for, and
    /// nothing is counted later than that.
    pub rounds_end: Duration,
    pub counts_end: Duration,
    pub json: bool,
    /// Whether instructions and misses are counted.
    pub counts: bool,
    /// Options of our side, as given.
    pub words: Vec<String>,
    /// More sides of ours, each as words: another build of this program, if the first one is not an
    /// option, and its options.
    pub beside: Vec<Vec<String>>,
}

/// What the consumer of `cross` does with the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumer {
    None,
    Reads,
    Writes,
}

/// What the producer of `cross` does with the metadata after the allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Producer {
    None,
    Commits,
}

/// How a case is run.
#[derive(Debug, Clone)]
pub struct Options {
    pub data: Data,
    pub init: Init,
    pub return_to: Return,
    /// `None`: the pool's default.
    pub hot_list_len: Option<usize>,
    pub consumer: Consumer,
    pub producer: Producer,
    /// Where the two threads run; with fewer, as the kernel likes.
    pub cpus: Vec<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            data: Data::default(),
            init: Init::default(),
            return_to: Return::default(),
            hot_list_len: None,
            consumer: Consumer::Reads,
            producer: Producer::None,
            cpus: thread::allowed_cpus().unwrap_or_default(),
        }
    }
}

impl Options {
    /// Binds the calling thread to the `nth` CPU, if there is one.
    pub fn pin(&self, nth: usize) {
        if let Some(&cpu) = self.cpus.get(nth) {
            thread::pin_to_cpu(cpu).expect("the CPU is one that we were allowed to use");
        }
    }

    /// A Local with the hot list asked for.
    pub fn local(&self, pool: &Pool) -> Local {
        self.hot_list_len.map_or_else(|| pool.local(), |len| pool.local_with(len))
    }

    /// Takes one option; false if `flag` is none of a case's.
    fn take(
        &mut self,
        flag: &str,
        value: &mut impl FnMut() -> Result<String, String>,
    ) -> Result<bool, String> {
        match flag {
            "--data" => {
                let of = [("frames", Data::Frames), ("general", Data::General)];
                self.data = one_of(flag, &value()?, &of)?;
            }
            "--init" => {
                let of = [("at_alloc", Init::AtAlloc), ("at_free", Init::AtFree)];
                self.init = one_of(flag, &value()?, &of)?;
            }
            "--return" => {
                let of = [("local", Return::Local), ("home", Return::Home)];
                self.return_to = one_of(flag, &value()?, &of)?;
            }
            "--hot-list" => self.hot_list_len = Some(number(flag, &value()?)?),
            "--consumer" => {
                let of = [
                    ("none", Consumer::None),
                    ("reads", Consumer::Reads),
                    ("writes", Consumer::Writes),
                ];
                self.consumer = one_of(flag, &value()?, &of)?;
            }
            "--producer" => {
                let of = [("none", Producer::None), ("commits", Producer::Commits)];
                self.producer = one_of(flag, &value()?, &of)?;
            }
            "--cpus" => {
                let list = value()?;
                self.cpus =
                    list.split(',').map(|cpu| number(flag, cpu)).collect::<Result<_, _>>()?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

const USAGE: &str = "usage: buffers [CASE…] [--quick] [--rounds N] [--no-counts] [--json] [--beside WORDS]… [OPTION…]
       buffers --once CASE [--bursts N] [--reps N] [OPTION…]
       buffers --about | --test
options: --data frames|general, --init at_alloc|at_free, --return local|home, --hot-list N,
         --consumer none|reads|writes, --producer none|commits, --cpus A,B";

/// Understands the arguments.
pub fn parse(args: impl Iterator<Item = String>) -> Result<Command, String> {
    let args: Vec<String> = args.collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    if has("--test") || args.is_empty() {
        return Ok(Command::Smoke);
    }
    if has("--about") {
        return Ok(Command::About);
    }
    if has("--once") { once(args) } else { table(args) }
}

fn once(args: Vec<String>) -> Result<Command, String> {
    let mut once = Once { case: &CASES[0], bursts: 0, reps: 15, options: Options::default() };
    let mut args = args.into_iter();
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value\n{USAGE}"));
        match flag.as_str() {
            "--bench" => {}
            "--once" => once.case = case(&value()?)?,
            "--bursts" => once.bursts = number(&flag, &value()?)?,
            "--reps" => once.reps = number(&flag, &value()?)?,
            _ if once.options.take(&flag, &mut value)? => {}
            _ => return Err(format!("{flag} is not known\n{USAGE}")),
        }
    }
    if once.bursts == 0 {
        once.bursts = once.case.bursts;
    }
    Ok(Command::Once(once))
}

fn table(args: Vec<String>) -> Result<Command, String> {
    let mut plan = Plan {
        cases: Vec::new(),
        rounds: 16,
        reps: 15,
        rounds_end: Duration::from_secs(100),
        counts_end: Duration::from_secs(165),
        json: false,
        counts: true,
        words: Vec::new(),
        beside: Vec::new(),
    };
    let mut args = args.into_iter();
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value\n{USAGE}"));
        match flag.as_str() {
            "--bench" => {}
            "--quick" => {
                (plan.rounds, plan.reps, plan.counts) = (4, 9, false);
                plan.rounds_end = Duration::from_secs(22);
            }
            "--rounds" => {
                plan.rounds = number(&flag, &value()?)?;
                (plan.rounds_end, plan.counts_end) = (Duration::MAX, Duration::MAX);
            }
            "--no-counts" => plan.counts = false,
            "--json" => plan.json = true,
            "--beside" => {
                let words: Vec<String> = value()?.split_whitespace().map(str::to_owned).collect();
                plan.beside.push(words);
            }
            name if !name.starts_with('-') => plan.cases.push(case(name)?),
            _ => {
                // Our child understands it or says why not; here it is only checked.
                let mut words = vec![flag.clone()];
                let mut kept = || value().inspect(|word| words.push(word.clone()));
                if !Options::default().take(&flag, &mut kept)? {
                    return Err(format!("{flag} is not known\n{USAGE}"));
                }
                plan.words.append(&mut words);
            }
        }
    }
    if plan.cases.is_empty() {
        plan.cases = CASES.iter().collect();
    }
    Ok(Command::Measure(plan))
}

fn case(name: &str) -> Result<&'static Case, String> {
    let names = || CASES.iter().map(|case| case.name).collect::<Vec<_>>().join(", ");
    let found = CASES.iter().find(|case| case.name == name);
    found.ok_or_else(|| format!("{name} is no case; there are {}", names()))
}

fn number<T: std::str::FromStr>(flag: &str, word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{flag} {word}: not a number"))
}

fn one_of<T: Copy>(flag: &str, word: &str, of: &[(&str, T)]) -> Result<T, String> {
    let names = || of.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("|");
    let found = of.iter().find(|(name, _)| *name == word);
    found.map(|(_, value)| *value).ok_or_else(|| format!("{flag} {word}: one of {}", names()))
}
