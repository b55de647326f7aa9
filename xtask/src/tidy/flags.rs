//! The commands of the `linerate` binary and their flags, as the definition for clap has them.

use crate::tidy::Tree;

/// Where the commands are defined: all of them, and those that have commands of their own.
const ARGS: [&str; 4] = [
    "crates/cli/src/args.rs",
    "instruments/cli/src/main.rs",
    "instruments/cli/src/lab/args.rs",
    "instruments/cli/src/profile/args.rs",
];

/// Whether `words` is a command of ours with flags that it has: `forward --cpu --budget`, `lab seeds`.
pub fn exist(tree: &Tree, words: &str) -> bool {
    let args: Vec<&str> = ARGS.iter().filter_map(|path| tree.text(path)).collect();
    let args = args.join("\n");
    ["Command", "Instrument"].iter().any(|commands| exists(&args, commands, words))
}

/// True if `words` is a command of the enum `commands`, with flags that it has.
fn exists<'a>(args: &'a str, mut commands: &'a str, words: &str) -> bool {
    let mut words = words.split_whitespace().peekable();
    loop {
        let variants = fields(args, &format!("pub enum {commands} {{"));
        let Some(variant) = words.next().map(camel) else { return false };
        let Some(known) = variants.iter().find(|field| field.name == variant) else { return false };
        let Some(below) = subcommands(args, known.of).filter(|_| words.peek().is_some()) else {
            let flags = flags(args, known.of);
            let is_flag =
                |word: &str| word.strip_prefix("--").is_some_and(|w| flags.iter().any(|f| f == w));
            return words.all(is_flag);
        };
        commands = below;
    }
}

/// The enum of the commands below the command that `name` defines, if it has any.
fn subcommands<'a>(args: &'a str, name: &'a str) -> Option<&'a str> {
    if args.lines().any(|line| line == format!("pub enum {name} {{")) {
        return Some(name);
    }
    let fields = fields(args, &format!("pub struct {name} {{"));
    fields.iter().find(|field| field.attributes.contains("subcommand")).map(|field| field.of)
}

/// The long flags of the struct `name`, those of the structs flattened into it included.
fn flags(args: &str, name: &str) -> Vec<String> {
    let fields = fields(args, &format!("pub struct {name} {{"));
    let named = fields.iter().flat_map(|field| {
        if field.attributes.contains("flatten") {
            return flags(args, field.of);
        }
        field.long().into_iter().collect()
    });
    named.collect()
}

/// A field of a struct, or a variant of an enum.
struct Field<'a> {
    name: &'a str,
    /// The type of the field, or the first one that the variant holds.
    of: &'a str,
    attributes: String,
}

impl Field<'_> {
    /// The long flag that clap makes of it, if it makes one.
    fn long(&self) -> Option<String> {
        let (_, after) = self.attributes.split_once("long")?;
        match after.trim_start().strip_prefix("= \"") {
            Some(named) => named.split('"').next().map(str::to_owned),
            None => Some(self.name.replace('_', "-")),
        }
    }
}

/// The fields of the item that the line `head` opens; rustfmt ends it with a brace at the margin.
fn fields<'a>(args: &'a str, head: &str) -> Vec<Field<'a>> {
    let inside = args.lines().skip_while(|line| *line != head).skip(1);
    let mut fields = Vec::new();
    let mut attributes = String::new();
    for line in inside.take_while(|line| *line != "}").map(str::trim) {
        let code = line.strip_prefix("pub ").unwrap_or(line);
        let cut = code.find([':', '(', ',']).filter(|_| !code.starts_with("//"));
        let word = cut.map_or("", |cut| &code[..cut]);
        if word.is_empty() || !word.chars().all(|c| c.is_alphanumeric() || c == '_') {
            attributes.push_str(if line.starts_with("//") { "" } else { line });
            continue;
        }
        let of = code[word.len()..].trim_start_matches([':', '(', ' ']);
        let of = of.split(|c: char| !c.is_alphanumeric() && c != ':').next().unwrap_or_default();
        let of = of.rsplit("::").next().unwrap_or_default();
        fields.push(Field { name: word, of, attributes: std::mem::take(&mut attributes) });
    }
    fields
}

/// `forward` as the variant `Forward`, `top-talkers` as `TopTalkers`.
fn camel(command: &str) -> String {
    let mut variant = String::new();
    for word in command.split('-') {
        let mut letters = word.chars();
        variant.extend(letters.next().map(|c| c.to_ascii_uppercase()));
        variant.extend(letters);
    }
    variant
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
#[derive(Subcommand)]
pub enum Command {
    Forward(Forward),
    /// Print version
    Version,
    Lab(crate::lab::Lab),
    #[command(subcommand)]
    Profile(crate::profile::Profile),
}

pub struct Lab {
    #[command(subcommand)]
    pub command: LabCommand,
}

pub enum LabCommand {
    Seeds(Other),
}

pub enum Profile {
    List(Limits),
}

pub struct Forward {
    /// A port: long words
    #[arg(value_name = "A", requires = "right")]
    pub left: Option<String>,
    #[command(flatten)]
    pub limits: Limits,
}

pub struct Limits {
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    pub time: Option<Duration>,
    #[arg(long, value_name = "N", default_value_t = BUDGET,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub pool_frames: u16,
}

pub struct Other {
    #[arg(long)]
    pub alone: bool,
}
"#;

    fn there(words: &str) -> bool {
        exist(&Tree::of(&[(ARGS[0], SOURCE)]), words)
    }

    #[test]
    fn a_command_has_its_own_flags_and_those_flattened_into_it() {
        assert!(there("forward") && there("version"));
        assert!(there("forward --for --pool-frames"));
        assert!(!there("forward --time") && !there("forward --left"));
        assert!(!there("forward --alone") && !there("version --for"));
        assert!(!there("gen") && !there("forward for") && !there(""));
    }

    #[test]
    fn a_command_below_another_has_flags_of_its_own() {
        assert!(there("lab") && there("lab seeds --alone") && there("profile list --for"));
        assert!(!there("lab list") && !there("lab seeds --for") && !there("profile seeds"));
    }

    #[test]
    fn without_a_binary_there_are_no_commands() {
        assert!(!exist(&Tree::of(&[]), "forward"));
    }
}
