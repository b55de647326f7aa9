//! The public API as a list: `docs/api.txt`, one line for each item of the facade.
//!
//! It is read from the pages that step `doc` has just written: each is a file `kind.Name.html`, in
//! which what a user can call, match or name stands as `id="method.push"` before the
//! implementations of traits. `UPDATE_API=1 cargo xtask doc` writes the list again; its diff shows
//! the change.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cargo;

const LIST: &str = "docs/api.txt";
/// The crates in the list: the facade, with its re-exported items, the crate that it re-exports as
/// a whole, and the crates that programs add as dependencies.
const CRATES: [&str; 4] = ["linerate", "linerate_smoltcp", "linerate_tokio", "linerate_wire"];
/// Kinds of items with a page of their own.
const KINDS: [&str; 8] = ["struct", "enum", "trait", "fn", "type", "constant", "macro", "union"];
/// Kinds of members that have an anchor on a page.
const MEMBERS: [&str; 7] = [
    "method",
    "tymethod",
    "variant",
    "structfield",
    "associatedconstant",
    "associatedtype",
    "reexport",
];

/// Removes the pages, so that items removed from the sources are missing from the list.
pub fn forget(root: &Path) -> Result<()> {
    for name in CRATES {
        let pages = cargo::target_dir(root).join("doc").join(name);
        if pages.exists() {
            fs::remove_dir_all(&pages).with_context(|| pages.display().to_string())?;
        }
    }
    Ok(())
}

/// Compares the list with the pages, or writes it if `UPDATE_API` is set; returns its length.
pub fn compare(root: &Path) -> Result<String> {
    let mut items = BTreeSet::new();
    for name in CRATES {
        let folder = cargo::target_dir(root).join("doc").join(name);
        collect(&folder, name, &mut items).with_context(|| format!("no pages of {name}"))?;
    }
    let list: String = items.iter().map(|item| format!("{item}\n")).collect();
    let known = fs::read_to_string(root.join(LIST)).unwrap_or_default();
    if std::env::var_os("UPDATE_API").is_some() {
        fs::write(root.join(LIST), &list)?;
    } else {
        refuse_other(&known, &items)?;
    }
    Ok(format!("{} public items", items.len()))
}

/// Prints how the items differ from the `known` list; fails if they do.
fn refuse_other(known: &str, items: &BTreeSet<String>) -> Result<()> {
    if known.lines().eq(items) {
        return Ok(());
    }
    let known: BTreeSet<String> = known.lines().map(str::to_owned).collect();
    known.difference(items).for_each(|item| eprintln!("- {item}"));
    items.difference(&known).for_each(|item| eprintln!("+ {item}"));
    bail!("the public API is not that of {LIST}; if that is meant: UPDATE_API=1 cargo xtask doc")
}

/// Adds the items below a folder of pages: `kind path::Name: members`.
fn collect(folder: &Path, path: &str, items: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            if file == "prelude" {
                continue;
            }
            collect(&entry.path(), &format!("{path}::{file}"), items)?;
            continue;
        }
        let Some((kind, name)) = file.trim_end_matches(".html").split_once('.') else {
            if file == "index.html" {
                let members = members(&fs::read_to_string(entry.path())?);
                items.insert(format!("mod {path}{members}"));
            }
            continue;
        };
        if KINDS.contains(&kind) {
            let page = fs::read_to_string(entry.path())?;
            // The page of an item in a private module only redirects to the public page.
            if !page.contains("http-equiv=\"refresh\"") {
                items.insert(format!("{kind} {path}::{name}{}", members(&page)));
            }
        }
    }
    Ok(())
}

/// Formats the members of a page as `: a b c`, in order of their names.
fn members(page: &str) -> String {
    let own = page.split("id=\"trait-implementations\"").next().unwrap_or(page);
    let own = own.split("id=\"foreign-impls\"").next().unwrap_or(own);
    let anchors = own.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let names = anchors.filter_map(|anchor| {
        let (kind, name) = anchor.split_once('.')?;
        // A variant's field is `variant.Exported.field.by`. Skip a heading above fields
        // (`.fields`), and the second anchor of a name, which contains `-`.
        let is_name = MEMBERS.contains(&kind) && !name.ends_with(".fields") && !name.contains('-');
        is_name.then(|| name.replace(".field.", "."))
    });
    let names: BTreeSet<String> = names.collect();
    let list = names.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    if list.is_empty() { list } else { format!(": {list}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_members_of_a_page_are_its_own() {
        let page = "<section id=\"method.push\"><div id=\"variant.A.field.by\"><h2 \
                    id=\"trait-implementations\"><section id=\"method.clone\">";
        assert_eq!((members(page).as_str(), members("").as_str()), (": A.by push", ""));
        // A heading above fields, and the implementations of a trait for other types.
        let page = "<h3 id=\"variant.A.fields\"><h2 id=\"foreign-impls\"><section id=\"method.y\">";
        assert_eq!(members(page), "");
    }

    #[test]
    fn items_of_public_pages_are_compared_with_the_list() {
        let folder = std::env::temp_dir().join(format!("linerate-api-{}", std::process::id()));
        fs::create_dir_all(folder.join("m")).unwrap();
        fs::create_dir_all(folder.join("prelude")).unwrap();
        for (file, page) in [
            ("index.html", ""),
            ("struct.A.html", "<section id=\"method.push\">"),
            ("struct.Moved.html", "<meta http-equiv=\"refresh\" content=\"0\">"),
            ("m/fn.f.html", ""),
            ("prelude/struct.A.html", ""),
        ] {
            fs::write(folder.join(file), page).unwrap();
        }
        let mut items = BTreeSet::new();
        collect(&folder, "x", &mut items).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let list = "fn x::m::f\nmod x\nstruct x::A: push\n";
        assert!(refuse_other(list, &items).is_ok(), "{items:?}");
        for other in ["fn x::m::f\nmod x\nstruct x::A\n", &format!("{list}struct x::B\n"), ""] {
            assert!(refuse_other(other, &items).is_err(), "{other}");
        }
    }
}
