//! The command line, in three forms: a table, one case (what the table's children run), a smoke
//! test.

use std::time::Duration;

use linerate_skb::bench::{CASES, Case, Options, named, number};

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
            "--once" => once.case = named(&value()?)?,
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
            name if !name.starts_with('-') => plan.cases.push(named(name)?),
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
