//! Errors that get the remedy for a missing privilege.

use super::*;

#[test]
fn an_error_of_the_system_is_no_missing_privilege_unless_it_says_so() {
    let code = |code, why: &str| {
        permitted::<()>(Err(Error::new(code, "cannot run ip", why))).unwrap_err().code
    };
    for text in [
        "Operation not permitted",
        "Permission denied",
        "Unknown device type",
        "Operation not supported",
    ] {
        let why = format!("exit status: 2: RTNETLINK answers: {text}");
        assert_eq!(code(Code::System, &why), Code::Permission);
        assert_eq!(code(Code::Unsupported, &why), Code::Unsupported);
    }
    assert_eq!(code(Code::Permission, "unshare"), Code::Permission);
    assert_eq!(code(Code::System, "exit status: 2: File exists"), Code::System);
    assert_eq!(code(Code::DeviceDown, "eth0 has none after 10 s"), Code::DeviceDown);
}
