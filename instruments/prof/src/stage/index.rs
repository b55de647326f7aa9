//! A hash table of names, built once: a profile may have a million names to look up.

use std::collections::HashMap;

use super::Stage;
use super::names::Names;

/// The names of all stages, hashed. A whole name takes precedence over a prefix, and a longer
/// prefix over a shorter one; of equal names the first takes precedence.
#[derive(Default)]
pub(super) struct Index {
    whole: HashMap<&'static str, Stage>,
    prefixes: HashMap<&'static str, Stage>,
    /// Length of the longest prefix in bytes.
    longest: usize,
}

impl Index {
    pub(super) fn of(table: &[Names]) -> Index {
        let mut index = Index::default();
        for &(stage, patterns) in table {
            for pattern in patterns {
                match pattern.strip_suffix('*') {
                    Some(prefix) => {
                        index.longest = index.longest.max(prefix.len());
                        index.prefixes.entry(prefix).or_insert(stage)
                    }
                    None => index.whole.entry(pattern).or_insert(stage),
                };
            }
        }
        index
    }

    /// Returns the stage of `name`.
    pub(super) fn look_up(&self, name: &str) -> Option<Stage> {
        let prefix = |length| self.prefixes.get(name.get(..length)?);
        let mut lengths = (0..=name.len().min(self.longest)).rev();
        self.whole.get(name).or_else(|| lengths.find_map(prefix)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::names;
    use super::*;
    use proptest::prelude::*;

    /// Returns the stage by scanning the whole table, for comparison.
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
        for table in [names::KERNEL, names::MODULES, names::PROGRAM, names::LIBRARY] {
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
