//! Names, made harmless and short.

pub use linerate_show::words::harmless;

use linerate_show::words::elided;

/// `name`, harmless, in at most `width` characters: the middle of a long one is left out, since a
/// path begins with its crate and ends with its function.
pub(super) fn short(name: &str, width: usize) -> String {
    elided(&harmless(name), width)
}

/// The file of `object`, without its folders.
pub(super) fn file_of(object: &str) -> &str {
    match object.rsplit('/').next() {
        Some(file) if !file.is_empty() => file,
        _ => object,
    }
}
