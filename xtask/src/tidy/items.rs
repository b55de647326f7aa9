//! What our crates define for others, found by reading their sources: enough to say whether a path
//! such as `Skb::push` or `linerate_skb::Trust` leads anywhere.
//!
//! It follows braces and reads the words before each. What a macro generates it sees only where
//! the macro is called with a table, `NAME = …;`, whose names become constants of the type that
//! the macro implements.

use crate::tidy::{Tree, rust};

/// Everything public that the sources of the crates define.
#[derive(Debug, Default)]
pub struct Items(Vec<Item>);

#[derive(Debug)]
struct Item {
    package: String,
    modules: Vec<String>,
    /// The type or trait that it is a member of.
    of: Option<String>,
    name: String,
}

impl Items {
    /// Reads `crates/*/src`, tests apart.
    pub fn read(tree: &Tree) -> Items {
        let mut items = Vec::new();
        for (path, text) in tree.ending(".rs") {
            let Some((package, modules)) = module_of(path) else { continue };
            let masked = rust::mask(text);
            // Tests stand last in a file.
            let declared = rust::modules(&masked);
            let tests = declared.iter().find(|module| module.inline && module.for_tests);
            let shipped = &masked[..tests.map_or(masked.len(), |module| module.at)];
            items.extend(Scan::of(shipped).into_iter().map(|(of, name)| Item {
                package: package.clone(),
                modules: modules.clone(),
                of,
                name,
            }));
        }
        Items(items)
    }

    /// Whether `path` names an item: `[crate::][module::…][Type::]name`, with `()` or without.
    ///
    /// Modules may be left out, as a re-export leaves them out; the type of a member may not.
    pub fn has(&self, path: &str) -> bool {
        let path: Vec<&str> = path.trim_end_matches("()").split("::").collect();
        let package =
            path.first().filter(|first| self.0.iter().any(|item| item.package == **first));
        let [modules @ .., name] = &path[usize::from(package.is_some())..] else { return false };
        self.0.iter().any(|item| {
            let here = package.is_none_or(|package| item.package == *package);
            here && item.name == *name && self.reached(item, modules)
        })
    }

    /// Whether the part of a path before the name leads to `item`.
    fn reached(&self, item: &Item, before: &[&str]) -> bool {
        let modules = match (&item.of, before) {
            (None, modules) => modules,
            (Some(of), [modules @ .., named]) if of == named => {
                let public = |other: &Item| other.of.is_none() && other.name == *of;
                if !self.0.iter().any(|other| other.package == item.package && public(other)) {
                    return false;
                }
                modules
            }
            _ => return false,
        };
        let mut known = item.modules.iter();
        modules.iter().all(|module| known.any(|other| other == module))
    }
}

/// The crate, as Rust writes its name, and the module of a source file.
fn module_of(path: &str) -> Option<(String, Vec<String>)> {
    let (folder, inside) = crate::tidy::house(path)?.split_once("/src/")?;
    let package = match folder {
        "linerate" => folder.to_owned(),
        _ => format!("linerate_{folder}"),
    };
    let module = inside.strip_suffix(".rs")?;
    let module = module.strip_suffix("/mod").unwrap_or(module);
    let modules = module.split('/').filter(|name| !matches!(*name, "lib" | "main" | "mod"));
    Some((package, modules.map(str::to_owned).collect()))
}

/// What a pair of braces holds.
#[derive(Debug, Clone, PartialEq)]
enum Scope {
    /// Items of a module.
    Module,
    /// Fields of a struct.
    Struct(String),
    /// Variants of an enum.
    Enum(String),
    /// Members of a trait, or what a type has of one: public without saying so.
    Open(String),
    /// Members of a type.
    Impl(String),
    /// Names of a `pub use`.
    Uses,
    /// A macro's rules, with items in them.
    Rules,
    /// A macro's arguments.
    Call,
    /// Code.
    Body,
}

#[derive(Default)]
struct Scan {
    scopes: Vec<Scope>,
    /// The type that the file's macro implements.
    generated: Option<String>,
    found: Vec<(Option<String>, String)>,
}

impl Scan {
    fn of(masked: &str) -> Vec<(Option<String>, String)> {
        let mut scan = Scan::default();
        let (mut start, mut round) = (0, 0_i32);
        for (i, c) in masked.char_indices() {
            match c {
                '(' | '[' => round += 1,
                ')' | ']' => round -= 1,
                '{' | '}' | ';' | ',' if round == 0 => {
                    let head = without_attributes(&masked[start..i]);
                    scan.define(&head);
                    match c {
                        '{' => scan.open(&head),
                        '}' => drop(scan.scopes.pop()),
                        _ => {}
                    }
                    start = i + 1;
                }
                _ => {}
            }
        }
        scan.found
    }

    fn scope(&self) -> &Scope {
        self.scopes.last().unwrap_or(&Scope::Module)
    }

    /// Notes what `head`, the text before a brace, comma or semicolon, defines for others.
    fn define(&mut self, head: &str) {
        let public = head.starts_with("pub ");
        let first = || rust::words(head).map(|(_, word)| word).find(|word| *word != "pub");
        let (of, name) = match self.scope() {
            Scope::Module if head.starts_with("pub use ") => (None, reexported(head)),
            Scope::Uses => (None, reexported(head)),
            Scope::Module if public => (None, named(head).map(|(_, name)| name)),
            Scope::Struct(of) if public => (Some(of.clone()), first()),
            Scope::Enum(of) => (Some(of.clone()), first()),
            Scope::Open(of) => (Some(of.clone()), named(head).map(|(_, name)| name)),
            Scope::Impl(of) if public => (Some(of.clone()), named(head).map(|(_, name)| name)),
            Scope::Call if head.contains('=') => (self.generated.clone(), first()),
            _ => return,
        };
        let in_table = *self.scope() != Scope::Call || of.is_some();
        if let (Some(name), true) = (name, in_table) {
            self.found.push((of, name.to_owned()));
        }
    }

    /// Enters the braces that follow `head`.
    fn open(&mut self, head: &str) {
        let scope = match named(head) {
            _ if *self.scope() == Scope::Body => Scope::Body,
            _ if head.starts_with("macro_rules!") => Scope::Rules,
            _ if head.ends_with('!') => Scope::Call,
            _ if *self.scope() == Scope::Uses || head.starts_with("pub use ") => Scope::Uses,
            _ if *self.scope() == Scope::Rules && head.ends_with("=>") => Scope::Rules,
            _ if implemented(head).is_some() => self.implementation(head),
            Some(("struct" | "union", name)) => Scope::Struct(name.to_owned()),
            Some(("enum", name)) => Scope::Enum(name.to_owned()),
            Some(("trait", name)) => Scope::Open(name.to_owned()),
            Some(("mod", _)) => Scope::Module,
            _ => Scope::Body,
        };
        self.scopes.push(scope);
    }

    fn implementation(&mut self, head: &str) -> Scope {
        let Some((name, of_trait)) = implemented(head) else { return Scope::Body };
        if self.scopes.contains(&Scope::Rules) {
            self.generated = Some(name.clone());
        }
        if of_trait { Scope::Open(name) } else { Scope::Impl(name) }
    }
}

/// The kind and the name of the item that `head` begins.
fn named(head: &str) -> Option<(&str, &str)> {
    const KINDS: [&str; 9] =
        ["fn", "struct", "enum", "trait", "type", "union", "static", "mod", "const"];
    let words: Vec<&str> = rust::words(head).map(|(_, word)| word).collect();
    let fits = |pair: &&[&str]| {
        let function = pair[0] == "const" && ["fn", "unsafe", "extern", "async"].contains(&pair[1]);
        KINDS.contains(&pair[0]) && !function
    };
    words.windows(2).find(fits).map(|pair| (pair[0], pair[1]))
}

/// The name that a part of a `pub use` ends in; none before braces and after them.
fn reexported(head: &str) -> Option<&str> {
    let ends_in_name = head.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    rust::words(head).last().map(|(_, word)| word).filter(|_| ends_in_name)
}

/// The type that `head` implements something for, and whether that is a trait.
fn implemented(head: &str) -> Option<(String, bool)> {
    let head = head.strip_prefix("unsafe ").unwrap_or(head).strip_prefix("impl")?;
    let plain = without_generics(head);
    let plain = plain.split(" where ").next().unwrap_or_default();
    let (of_trait, name) = match plain.rsplit_once(" for ") {
        Some((_, name)) => (true, name),
        None => (false, plain),
    };
    let name = rust::words(name).last()?.1;
    Some((name.to_owned(), of_trait))
}

/// `text` without what stands in `#[…]`, its white space single.
fn without_attributes(text: &str) -> String {
    let mut kept = String::new();
    let (mut depth, mut attribute, mut last) = (0, false, ' ');
    for c in text.chars() {
        if c == '[' && (attribute || last == '#') {
            attribute = true;
            depth += 1;
        }
        if !attribute && c != '#' {
            kept.push(c);
        }
        if c == ']' && attribute {
            depth -= 1;
            attribute = depth > 0;
        }
        last = c;
    }
    kept.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `text` without what stands in `<…>`.
fn without_generics(text: &str) -> String {
    let mut kept = String::new();
    let (mut depth, mut last) = (0_i32, ' ');
    for c in text.chars() {
        match c {
            '<' => depth += 1,
            // The arrow of a closure's bound closes nothing.
            '>' if last != '-' => depth -= 1,
            _ if depth == 0 => kept.push(c),
            _ => {}
        }
        last = c;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "pub mod reason;\nmod skb;\npub use skb::Skb;\n\
                       pub use sys::{mem::{Huge, Pages as Sheets}, Code};\nuse std::fmt;\n";
    const SKB: &str = r#"
        /// A packet.
        #[derive(Debug, Clone)]
        pub struct Skb<S = Unique> {
            pub len: usize, pub map: Map<u8, u8>,
            handle: u32,
        }
        pub(crate) struct Meta { pub off: u32 }
        impl Meta { pub fn fresh() {} }
        impl<S: Fn() -> u8> Skb<S> where S: Send {
            pub const MAX: [u8; 2] = [0; 2];
            #[must_use]
            pub const fn push(&mut self) { let pulled = Pulled { at: 1 }; match x { A => {} } }
            pub(crate) fn raw(&self) {}
        }
        impl Drop for Skb { fn drop(&mut self) {} }
        pub enum Trust { Private, #[default] Exported { by: u8 } }
        pub trait Stage: Send { fn run(&mut self); const NAME: u8; }
        pub fn receive(n: [u8; 4]) -> u8 { fn inner() {} }
        fn hidden() {}
        #[cfg(test)]
        mod tests { pub fn only_here() {} }
    "#;
    const REASON: &str = r#"
        pub struct DropReason { code: u8 }
        macro_rules! reasons {
            ($($name:ident = $code:literal;)*) => {
                impl DropReason { $(pub const $name: DropReason = DropReason { code: $code };)* }
            };
        }
        reasons! { /// The ring was full.
            TX_FULL = 0; NO_FRAME = 1; }
        thread_local! { static SLOTS: u8 = 0; }
    "#;

    fn has(path: &str) -> bool {
        let tree = Tree::of(&[
            ("crates/skb/src/lib.rs", LIB),
            ("crates/skb/src/skb.rs", SKB),
            ("crates/skb/src/reason.rs", REASON),
            ("crates/port/src/ring/mod.rs", "pub const LEN: u32 = 1024;\n"),
            ("xtask/src/main.rs", "pub fn main_only() {}\n"),
        ]);
        Items::read(&tree).has(path)
    }

    #[test]
    fn what_is_public_is_found_with_and_without_its_modules() {
        for path in [
            "Skb",
            "linerate_skb::Skb",
            "linerate_skb::skb::Skb::push",
            "Skb::push()",
            "Skb::len",
            "Skb::map",
            "Skb::MAX",
            "Skb::drop",
            "Trust::Private",
            "Trust::Exported",
            "Stage::run",
            "Stage::NAME",
            "receive",
            "skb::receive",
            "linerate_skb::reason",
            "ring::LEN",
            "linerate_port::ring::LEN",
            "DropReason::TX_FULL",
            "DropReason::NO_FRAME",
            "linerate_skb::Huge",
            "Sheets",
            "Code",
        ] {
            assert!(has(path), "{path}");
        }
    }

    #[test]
    fn what_is_private_elsewhere_or_nowhere_is_not() {
        for path in [
            "Skb::pull",
            "Skb::handle",
            "Skb::raw",
            "Meta",
            "Meta::off",
            "Meta::fresh",
            "Pulled",
            "inner",
            "hidden",
            "only_here",
            "tests::only_here",
            "main_only",
            "push",
            "Trust::push",
            "ring::receive",
            "linerate_port::Skb",
            "linerate_skb",
            "linerate_skb::ring::LEN",
            "SLOTS",
            "DropReason::SLOTS",
            "DropReason::BAD",
            "Pages",
            "mem",
            "fmt",
            "",
        ] {
            assert!(!has(path), "{path}");
        }
    }
}
