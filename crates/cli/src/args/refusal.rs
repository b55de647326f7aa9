//! A command line that clap refuses, in the form of any other error.

use std::io;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::errors::{self, Failure, RUNTIME, USAGE};
use crate::screen::{self, Screen};

/// Prints the requested help, or clap's error in the form of any other error; returns the exit
/// status.
pub fn refuse(e: &clap::Error) -> u8 {
    let words = errors::words();
    let json = words.iter().any(|word| word == "--json");
    let help = match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Some(0),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if !json => Some(USAGE),
        _ => None,
    };
    if let Some(status) = help {
        return match e.print() {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                let what = "cannot write the help to stdout";
                let failure = Failure::new(RUNTIME, "E-FILE", what, e.to_string(), "");
                Screen::plain(json).failure(&failure.error);
                RUNTIME
            }
            _ => status,
        };
    }
    Screen::plain(json).failure(&usage(e, &words).error);
    USAGE
}

/// Returns clap's error as a failure; `words` are the arguments.
fn usage(e: &clap::Error, words: &[String]) -> Failure {
    // clap quotes the word that it cannot use, or the value in `--option=value`.
    let quoted = |word: &'_ String| match word.strip_prefix('-').and_then(|w| w.split_once('=')) {
        Some((_, value)) => value.to_owned(),
        None => word.clone(),
    };
    let secret = words.iter().map(quoted).filter(|word| errors::has_secret(word));
    let text = e.render().to_string();
    let text = secret.fold(text, |text, word| text.replace(&word, "…"));
    let until = |text: &str, end| text.split(end).next().unwrap_or_default().to_owned();
    let (why, usage) = match e.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => ("no command is named", ""),
        _ => text.split_once("\nUsage: ").unwrap_or((&text, "")),
    };
    let why = screen::one_line(why.strip_prefix("error: ").unwrap_or(why));
    let why = plain(until(&until(&why, " tip: "), " For more information"));
    // A command with several forms has one on each line.
    let forms = until(usage, "For more information");
    let forms = forms.lines().map(str::trim).filter(|form| !form.is_empty());
    let forms: Vec<&str> = forms.collect();
    let usage = forms.join(", or ");
    let fix = match near(e) {
        Some(word) => format!("did you mean {word}?"),
        // clap's only form then has the words that cannot be used together.
        None if e.kind() == ErrorKind::ArgumentConflict && forms.len() == 1 => {
            format!("use one of the two; {} lists the options", help_for(words))
        }
        // The usage does not say which commands there are, or what the values of an option are.
        None if e.kind() == ErrorKind::InvalidSubcommand => help_for(before_unknown(e, words)),
        None if usage.is_empty() || e.kind() == ErrorKind::TooFewValues => help_for(words),
        None => usage,
    };
    Failure::new(USAGE, "E-USAGE", "cannot understand the command", why, &fix)
}

/// Replaces the standard library's words for text that is no number, and clap's for a word that is
/// no command.
fn plain(mut why: String) -> String {
    for (theirs, ours) in [
        ("invalid digit found in string", "write a whole number"),
        ("cannot parse integer from empty string", "write a whole number"),
        ("number too large to fit in target type", "the number is too large"),
        ("unrecognized subcommand", "there is no command"),
        ("the following required arguments were not provided: <B>", "there is no second port, B"),
        ("the following required arguments were not provided:", "what is missing:"),
    ] {
        why = why.replace(theirs, ours);
    }
    why
}

/// Returns the word that clap suggests for a misspelt one.
fn near(e: &clap::Error) -> Option<String> {
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedValue, ContextKind::SuggestedSubcommand];
    suggested.into_iter().find_map(|kind| match e.get(kind)? {
        ContextValue::String(word) => Some(word.clone()),
        ContextValue::Strings(words) => words.first().cloned(),
        _ => None,
    })
}

/// Returns the commands that stand before the word that is none.
fn before_unknown<'a>(e: &clap::Error, words: &'a [String]) -> &'a [String] {
    let words = words.strip_prefix(&["help".to_owned()]).unwrap_or(words);
    let Some(ContextValue::String(unknown)) = e.get(ContextKind::InvalidSubcommand) else {
        return &[];
    };
    let until = words.iter().position(|word| word == unknown || word == "help");
    &words[..until.unwrap_or(0)]
}

/// Returns the command that prints help for these arguments.
fn help_for(words: &[String]) -> String {
    let is_command = |word: &&String| word.bytes().all(|byte| byte.is_ascii_lowercase());
    let commands = words.iter().take(2).take_while(is_command);
    commands.fold("linerate".to_owned(), |text, word| text + " " + word) + " --help"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use clap::Parser;

    #[test]
    fn a_refusal_is_cut_into_its_parts() {
        for (words, why, fix) in [
            ("forward null:", "there is no second port, B", "linerate forward <A> <B>"),
            ("forward --jsn", "unexpected argument '--jsn' found", "did you mean --json?"),
            ("gen sink: --moderate", "unexpected argument", "did you mean --moderation?"),
            ("forward --place aut", "[possible values: auto, napi", "did you mean auto?"),
            ("forward --for 10", "'10' needs a unit: ns us ms s m h", "linerate forward --help"),
            (
                "forward --for 0s",
                "'0s' for '--for <TIME>': write a time above 0",
                "linerate forward",
            ),
            ("forward --for -1s", "'-1s' for '--for <TIME>': write a time above 0", "linerate"),
            ("forward --for --json", "'--json' for '--for <TIME>': write a time", "linerate"),
            (
                "forward --cpu 0-1",
                "'0-1' for '--cpu <N,..>': write CPU numbers separated by commas",
                "linerate forward --help",
            ),
            (
                "forward --sample x",
                "'x' for '--sample <N>': write a whole number",
                "linerate forward --help",
            ),
            ("help nosuch", "there is no command 'nosuch'", "linerate --help"),
            ("help doctor try", "there is no command 'try'", "linerate doctor --help"),
            ("tune /run/x -C e0 rx-usecs", "3 values required by", "linerate tune --help"),
            (
                "doctor --try e0 --peer fd07::1",
                "'fd07::1' for '--peer <ADDR>': an IPv4 address",
                "linerate doctor --help",
            ),
            (
                "doctor --undo v0",
                "cannot be used with",
                "use one of the two; linerate doctor --help",
            ),
        ] {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let all = ["linerate".to_owned()].into_iter().chain(words.clone());
            let error = usage(&Args::try_parse_from(all).unwrap_err(), &words).error;
            assert!(error.why.contains(why) && error.fix.starts_with(fix), "{error:?}");
            for part in ["tip:", "Usage", "For more", "error:"] {
                assert!(!error.why.contains(part) && !error.fix.contains(part), "{error:?}");
            }
        }
    }
}
