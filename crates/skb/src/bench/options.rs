//! How a case is run: where its data is, when it is initialised, who touches what.

use linerate_sys::thread;

use crate::{Data, Init, Local, Pool, Return};

/// What the consumer of `cross` does with the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumer {
    /// Nothing.
    None,
    /// It reads the lengths.
    Reads,
    /// It writes a length.
    Writes,
}

/// What the producer of `cross` does with the metadata after the allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Producer {
    /// Nothing.
    None,
    /// It says that there are bytes.
    Commits,
}

/// How a case is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the bytes are.
    pub data: Data,
    /// When metadata is initialised.
    pub init: Init,
    /// Where a frame goes that another core frees.
    pub return_to: Return,
    /// `None`: the pool's default.
    pub hot_list_len: Option<usize>,
    /// What the consumer of `cross` does.
    pub consumer: Consumer,
    /// What its producer does.
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
    ///
    /// # Panics
    /// If that is a CPU that this process may not use.
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
    ///
    /// # Errors
    /// What is wrong with its value.
    pub fn take(
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

/// A number, for an option.
///
/// # Errors
/// If `word` is none.
pub fn number<T: std::str::FromStr>(flag: &str, word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{flag} {word}: not a number"))
}

fn one_of<T: Copy>(flag: &str, word: &str, of: &[(&str, T)]) -> Result<T, String> {
    let names = || of.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("|");
    let found = of.iter().find(|(name, _)| *name == word);
    found.map(|(_, value)| *value).ok_or_else(|| format!("{flag} {word}: one of {}", names()))
}
