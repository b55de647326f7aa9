//! Heads of `top` in any text: each parsed head is printed, and the printed text is parsed to an
//! equal head.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_prof::proc::Head;

fuzz_target!(|text: &str| {
    let (heads, complaints) = Head::all(text);
    let lines = text.lines().count();
    assert!(4 * heads.len() <= lines);
    for head in &heads {
        let printed = head.to_string();
        // A share is printed with one digit, so compare the printed texts instead of the shares.
        let again = Head::parse(&printed).expect("we printed it");
        assert_eq!(again.to_string(), printed);
        assert_eq!((again.processes, again.mem, again.swap), (head.processes, head.mem, head.swap));
    }
    for complaint in &complaints {
        assert!((1..=lines as u64).contains(&complaint.line));
        assert!(!complaint.why.contains(char::is_control));
    }
});
