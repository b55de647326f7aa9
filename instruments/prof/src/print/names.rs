//! Names, made harmless and short.

pub use linerate_sys::text::harmless;

/// `name`, harmless, in at most `width` characters: the middle of a long one is left out, since a
/// path begins with its crate and ends with its function.
pub(super) fn short(name: &str, width: usize) -> String {
    let name = harmless(name);
    let length = name.chars().count();
    if length <= width {
        return name.into_owned();
    }
    let kept = width.saturating_sub(1);
    let head = kept / 2;
    let start: String = name.chars().take(head).collect();
    let end: String = name.chars().skip(length - (kept - head)).collect();
    format!("{start}…{end}")
}

/// The file of `object`, without its folders.
pub(super) fn file_of(object: &str) -> &str {
    match object.rsplit('/').next() {
        Some(file) if !file.is_empty() => file,
        _ => object,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_its_start_and_its_end() {
        let name = "std::collections::hash::map::HashMap<K,V,S>::get_or_insert_with";
        let short = short(name, 31);
        assert_eq!(short, "std::collection…_or_insert_with");
        assert_eq!(super::short("ＡＢＣＤ", 3), "Ａ…Ｄ");
        assert_eq!(super::short("abc", 0), "…");
    }
}
