//! The arguments of a program.

/// Returns the arguments after the program's name.
///
/// # Errors
/// Names an argument that is not UTF-8, and the remedy.
pub(crate) fn texts() -> Result<Vec<String>, String> {
    let text = |(i, argument): (usize, std::ffi::OsString)| {
        argument.into_string().map_err(|argument| {
            let shown = argument.display();
            format!("argument {i} is not UTF-8: {shown}; rename the file or interface, or name a link to the file")
        })
    };
    std::env::args_os().enumerate().skip(1).map(text).collect()
}
