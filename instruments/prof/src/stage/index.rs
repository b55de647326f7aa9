//! A table of names, sorted once: a profile may have a million of them to look up.

use super::Stage;
use super::names::Names;

/// Names of stages. A whole name goes before a prefix, a longer prefix before a shorter; of two that
/// are the same, the first counts.
pub(super) struct Index {
    whole: Vec<(&'static [u8], Stage)>,
    prefixes: Vec<(&'static [u8], Stage)>,
}

impl Index {
    pub(super) fn of(table: &[Names]) -> Index {
        let (mut whole, mut prefixes) = (Vec::new(), Vec::new());
        for &(stage, patterns) in table {
            for pattern in patterns {
                match pattern.strip_suffix('*') {
                    Some(prefix) => prefixes.push((prefix.as_bytes(), stage)),
                    None => whole.push((pattern.as_bytes(), stage)),
                }
            }
        }
        for list in [&mut whole, &mut prefixes] {
            // Stable, so that the first of two stays.
            list.sort_by_key(|&(name, _)| name);
            list.dedup_by_key(|&mut (name, _)| name);
        }
        Index { whole, prefixes }
    }

    /// The stage of `name`.
    pub(super) fn look_up(&self, name: &str) -> Option<Stage> {
        let name = name.as_bytes();
        match self.whole.binary_search_by_key(&name, |&(whole, _)| whole) {
            Ok(at) => self.whole.get(at).map(|&(_, stage)| stage),
            Err(_) => self.longest_prefix(name),
        }
    }

    /// Returns the stage of the longest prefix of `name`. The last entry that does not sort after `name` is
    /// that prefix, or differs from `name` at some byte: then no prefix is longer than their common part,
    /// for it would sort between the two.
    fn longest_prefix(&self, name: &[u8]) -> Option<Stage> {
        let (mut list, mut name) = (self.prefixes.as_slice(), name);
        loop {
            let before = list.partition_point(|&(prefix, _)| prefix <= name);
            list = list.get(..before)?;
            let &(prefix, stage) = list.last()?;
            let common = prefix.iter().zip(name).take_while(|(a, b)| a == b).count();
            if common == prefix.len() {
                return Some(stage);
            }
            name = name.get(..common)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::names;
    use super::*;
    use proptest::prelude::*;

    /// The same by reading the whole table.
    fn scanned(table: &[Names], name: &str) -> Option<Stage> {
        let mut best: Option<(usize, Stage)> = None;
        for &(stage, patterns) in table {
            for pattern in patterns {
                let length = match pattern.strip_suffix('*') {
                    Some(prefix) if name.starts_with(prefix) => prefix.len(),
                    None if *pattern == name => usize::MAX,
                    _ => continue,
                };
                if best.is_none_or(|(longest, _)| length > longest) {
                    best = Some((length, stage));
                }
            }
        }
        best.map(|(_, stage)| stage)
    }

    #[test]
    fn every_pattern_and_what_is_beside_it_is_found_as_by_reading_the_whole_table() {
        for table in [names::KERNEL, names::MODULES, names::PROGRAM] {
            let index = Index::of(table);
            for pattern in table.iter().flat_map(|&(_, patterns)| patterns) {
                let stem = pattern.trim_end_matches('*');
                for name in [stem, &stem[..stem.len() - 1]] {
                    for end in ["", "a", "_", "\u{7f}", "zzz", "é"] {
                        let name = format!("{name}{end}");
                        assert_eq!(index.look_up(&name), scanned(table, &name), "{name}");
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_name_is_found_as_by_reading_the_whole_table(name in "[a-c_]{0,6}") {
            let table: &[Names] = &[
                (Stage::Ip, &["a*", "ab", "abc*", "b_*", "b_a*"]),
                (Stage::Tcp, &["ab*", "a*", "abca*", "_*", "c", "b_ab*"]),
            ];
            prop_assert_eq!(Index::of(table).look_up(&name), scanned(table, &name));
        }
    }
}
