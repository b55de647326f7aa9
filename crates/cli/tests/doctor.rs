//! Tests the output and the exit status of `linerate doctor`.

mod command;

use command::{command, run};

#[test]
fn a_port_without_a_device_is_well() {
    let ended = run("doctor null:");
    assert_eq!((ended.exit, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.out.starts_with("ok    opens: "), "{ended:?}");
    let document = run("doctor null: --json");
    assert_eq!(document.exit, Some(0));
    let d = document.document();
    assert_eq!(d["schema"], "linerate-doctor/1");
    assert_eq!((d["port"].as_str(), d["level"].as_str()), (Some("null:"), Some("ok")));
    assert_eq!(d["findings"][0]["level"], "ok");
}

#[test]
fn what_is_missing_is_told_with_its_remedy_and_the_status_of_a_check_that_failed() {
    for port in ["packet:nosuchif0", "nosuchif0"] {
        let ended = run(&format!("doctor {port}"));
        assert_eq!((ended.exit, ended.err.as_str()), (Some(3), ""), "{ended:?}");
        assert!(ended.out.starts_with("miss  "), "{ended:?}");
        assert!(ended.out.contains("nosuchif0\n      why: "), "{ended:?}");
        // A list of program names is no command, and is not printed as one.
        let words: Vec<&str> = ended.out.split_whitespace().collect();
        let listed = "use the name of an existing interface; this lists them: ip -br link";
        assert!(words.join(" ").contains(listed), "{ended:?}");
        let document = run(&format!("doctor {port} --json"));
        assert_eq!((document.exit, document.err.as_str()), (Some(3), ""), "{document:?}");
        let d = document.document();
        assert_eq!((&d["level"], &d["findings"][0]["code"]), (&"miss".into(), &"E-NODEV".into()));
        // A name alone is an interface for xdp.
        let asked = if port.contains(':') {
            port.to_owned()
        } else {
            format!("xdp:{port},ethertype=0x88b6")
        };
        assert_eq!(d["port"], asked.as_str());
    }
}

#[test]
fn secret_of_a_memif_port_is_in_no_output() {
    let name = format!("@linerate-doctor-secret-{}", std::process::id());
    for more in ["", " --json"] {
        let ended = run(&format!("doctor memif:{name},role=server,secret=s3cret{more}"));
        assert_eq!(ended.exit, Some(0), "{ended:?}");
        assert!(!ended.out.contains("s3cret") && !ended.err.contains("s3cret"), "{ended:?}");
    }
    let d = run(&format!("doctor memif:{name},role=server,secret=s3cret --json")).document();
    assert_eq!(d["port"], format!("memif:{name},role=server,secret=***"));
    // An error names the command, or the port.
    let port = format!("memif:{name},secret=s3cret");
    for (words, told) in [
        (format!("forward packet:nosuchif0 {port}"), "error"),
        (format!("gen {port} --to 192.0.2.7:7777"), "secret=*** is no interface"),
        (format!("forward a=gen: a={port}"), "other=memif:"),
        (format!("forward null: null: {port}"), "'…' found"),
        (format!("forward null: null: memif:{name},Secret=s3cret"), "'…' found"),
        (format!("forward null: null: memif:{name},secert=s3cret"), "'…' found"),
        (format!("doctor --peer {port}"), "invalid value '…'"),
        (format!("doctor --peer={port}"), "invalid value '…'"),
    ] {
        for more in ["", " --json"] {
            let ended = run(&format!("{words}{more}"));
            assert!(!ended.out.contains("s3cret") && !ended.err.contains("s3cret"), "{ended:?}");
            assert!((ended.out + &ended.err).contains(told), "{words}");
        }
    }
}

#[test]
fn a_text_that_is_no_port_is_refused_as_by_every_command() {
    for port in ["packt:x", "null:,sise=60", "xdp:x,ring=3"] {
        let ended = run(&format!("doctor {port}"));
        assert_eq!((ended.exit, ended.out.as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.err.starts_with("error[E-PORT-SYNTAX]: "), "{ended:?}");
        let d = run(&format!("doctor {port} --json")).document();
        assert_eq!(d["error"]["code"], "E-PORT-SYNTAX");
    }
    assert_eq!(run("doctor --try").exit, Some(2), "which port?");
    assert_eq!(run("doctor eth0 --peer 192.0.2.1").exit, Some(2), "nothing is asked without --try");
    assert_eq!(run("doctor --try eth0 --peer fd00::1").exit, Some(2), "by ARP");
    for words in ["--undo --yes", "--undo --peer 192.0.2.1"] {
        assert_eq!(run(&format!("doctor {words}")).exit, Some(2), "{words} tries nothing");
    }
    let ended = run("doctor --try null: --peer 192.0.2.1");
    assert!(ended.exit == Some(2) && ended.err.contains("only a port of xdp"), "{ended:?}");
}

#[test]
fn the_machine_is_told_in_lines_that_fit_a_terminal() {
    let ended = run("doctor");
    assert!(matches!(ended.exit, Some(0 | 3)), "{ended:?}");
    let missing = ended.out.lines().any(|line| line.starts_with("miss  "));
    assert_eq!(ended.exit, Some(if missing { 3 } else { 0 }), "{ended:?}");
    for line in ended.out.lines() {
        let begins = ["ok    ", "warn  ", "miss  ", "      "].iter().any(|b| line.starts_with(b));
        assert!(begins, "{line:?}");
        // Commands are on lines of their own, which may be long.
        let is_command = line.contains("fix: ") || line.contains("setcap ");
        assert!(line.chars().count() <= 80 || is_command, "{line:?}");
    }
    assert!(!ended.out.contains("allow ordinary pages"), "pools have them already: {ended:?}");
    let d = run("doctor --json").document();
    assert!(d["port"].is_null() && d["findings"].as_array().unwrap().len() > 5, "{d}");
}

#[test]
fn without_privilege_it_says_what_to_give_the_program() {
    let program = command("").get_program().to_owned();
    let user = ["--reuid", "65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"];
    let asked = std::process::Command::new("setpriv")
        .args(user)
        .arg(&program)
        .args(["doctor", "--json"])
        .output();
    let done = match asked {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return eprintln!("skipped: there is no `setpriv`");
        }
        done => done.unwrap(),
    };
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    // It may not change the user, or that user may not execute the program.
    if said.starts_with("setpriv: ") {
        return eprintln!("skipped: {}", said.trim());
    }
    let ended = command::Ended::from(done);
    assert_eq!(ended.exit, Some(3), "{ended:?}");
    let d = ended.document();
    let findings = d["findings"].as_array().unwrap();
    let refused = findings.iter().find(|f| f["level"] == "miss").unwrap();
    assert_eq!(refused["code"], "E-PERM", "{d}");
    let fix = refused["fix"]["text"].as_str().unwrap();
    assert!(fix.contains("setcap ") && fix.ends_with(program.to_str().unwrap()), "{d}");
}

#[test]
fn its_help_says_what_it_does_to_an_interface() {
    let help = run("doctor --help");
    assert_eq!(help.exit, Some(0));
    for part in
        ["undoes", "--try", "linerate doctor eth0", "something is missing", "takes no traffic"]
    {
        assert!(help.out.contains(part), "{part}: {}", help.out);
    }
}
