//! Tests the parsing of port texts, and its errors.

use super::*;

const DRIVERS: &[&str] = &["packet", "pcap", "null"];

fn parse(text: &str) -> Result<Spec> {
    Spec::parse(text, DRIVERS)
}

#[test]
fn all_parts_are_found() {
    let s = parse("west=packet:veth0,mtu=9000,bypass").unwrap();
    assert_eq!((s.name.as_str(), s.driver.as_str(), s.arg.as_str()), ("west", "packet", "veth0"));
    assert_eq!(s.value("mtu", str::parse::<u32>).unwrap(), Some(9000));
    assert!(s.flag("bypass").unwrap() && !s.flag("promisc").unwrap());
    s.finish().unwrap();
    assert_eq!(parse("null:").unwrap().name, "null");
    assert_eq!(parse("pcap:/tmp/a=b.pcap").unwrap().arg, "/tmp/a=b.pcap");
}

#[test]
fn wrong_option_is_named_with_the_right_one() {
    for (text, why, fix) in [
        ("veth0", "no driver", "xdp:veth0 or packet:veth0"),
        ("/dev/x", "no driver", "packet:eth0"),
        (
            "packet",
            "no ':' follows the driver 'packet'",
            "write packet:INTERFACE, as in packet:eth0",
        ),
        ("packet,promisc", "no ':' follows", "as in packet:eth0"),
        ("null", "no ':' follows the driver 'null'", "or null: if it needs no argument"),
        ("packte:veth0", "no driver 'packte'", "did you mean packet:veth0?"),
        ("pacp:x", "no driver 'pacp'", "did you mean pcap:x?"),
        ("packt:veth0", "no driver 'packt'", "packet:veth0"),
        ("warp:x", "no driver 'warp'", "packet pcap null"),
        ("=packet:x", "name before '='", "write NAME=packet:"),
        ("packet:x,a,a", "twice", "leave out one"),
        ("packet:x,=1", "no key", "KEY=VALUE"),
        ("packet:x,", "one comma too many", "leave out the comma"),
        ("packet:x,,a", "one comma too many", "leave out the comma"),
        ("PACKET:x", "no driver 'PACKET'", "packet:x"),
    ] {
        let e = parse(text).unwrap_err();
        assert_eq!(e.code, Code::PortSyntax);
        assert!(e.why.contains(why) && e.fix.contains(fix), "{text}: {e}");
    }
}

#[test]
fn the_secret_is_not_shown_whatever_stands_around_it() {
    for (text, said) in [
        ("null:/run/x,secret=hunter2,id=1", "null:/run/x,secret=***,id=1"),
        ("null:/run/x:secret=hunter2,id=1", "null:/run/x:secret=***,id=1"),
        ("null:/run/x;id=1 secret=hunter2;x,id=1", "null:/run/x;id=1 secret=***,id=1"),
        ("null:/run/x\tsecret=hunter2", "null:/run/x\tsecret=***"),
        ("null:/run/x,secret:hunter2", "null:/run/x,secret:***"),
        ("null:secret=hunter2", "null:secret=***"),
        ("x secret=hunter2:y", "x secret=***"),
        ("secret=hunter2:y,id=1", "secret=***,id=1"),
        ("nul:/run/x:secret=hunter2", "nul:/run/x:secret=***"),
        ("null:/run/x,secret:hunter2,secret:hunter2", "null:/run/x,secret:***,secret:***"),
        ("null:/run/x,Secret=hunter2,id=1", "null:/run/x,Secret=***,id=1"),
        ("null:/run/x:SECRET=hunter2", "null:/run/x:SECRET=***"),
        ("null:/run/x,secret,hunter2,id=1", "null:/run/x,secret,***,id=1"),
        ("null:/run/\u{e9}\u{130},sEcret:hunter2", "null:/run/\u{e9}\u{130},sEcret:***"),
    ] {
        assert_eq!(shown(text), said);
        if let Ok(spec) = parse(text) {
            let debug = format!("{spec:?}");
            assert!(debug.contains("***") && !debug.contains("hunter2"), "{debug}");
        }
        let refused = parse(text).and_then(|spec| {
            spec.value("secret", |text| Ok::<_, String>(text.to_owned()))?;
            spec.value("id", str::parse::<u32>)?;
            spec.finish()
        });
        let whole = refused.map_or_else(|e| format!("{e} {e:?}"), |()| said.into());
        assert!(whole.contains(said) && !whole.contains("hunter2"), "{whole}");
    }
    for text in ["null:/run/secret", "null:/run/my-secret=1", "null:x,secrets=2"] {
        assert_eq!(shown(text), text);
    }
    let spec = parse("null:/run/x:secret=hunter2").unwrap();
    assert_eq!(spec.value("secret", str::parse::<u32>), Ok(None));
    assert_eq!(spec.finish().unwrap_err().fix, "did you mean ,secret=***?");
}

#[test]
fn value_of_an_unknown_key_that_is_like_secret_is_not_shown() {
    for (text, said) in [
        ("null:x,secert=hunter2", "null:x,secert=***"),
        ("null:x,ide=1,secrets=hunter2,Sercet=hunter2", "null:x,ide=1,secrets=***,Sercet=***"),
        ("null:x,sceret:hunter2", "null:x,sceret:***"),
        ("null:x,secret-file=a,secre=hunter2", "null:x,secret-file=a,secre=***"),
    ] {
        let spec = parse(text).unwrap();
        let early = spec.error("the other options are not read yet");
        for key in ["secret", "secret-file", "id"] {
            assert!(spec.value(key, |_| Ok::<_, String>(())).is_ok());
        }
        let e = spec.finish().unwrap_err();
        for shown in [early.to_string(), e.to_string(), format!("{spec:?}"), spec.shown_text()] {
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        assert!(e.what.contains(said) && e.why.contains("has no option '"), "{e}");
    }
    let e = parse("null:x,secert=hunter2").unwrap().finish().unwrap_err();
    assert_eq!(e.why, "null has no option 'secert'");
    // An option of this name would be shown.
    let spec = parse("null:x,secrets=2").unwrap();
    assert_eq!(spec.value("secrets", str::parse::<u32>), Ok(Some(2)));
    assert_eq!((spec.finish(), &*spec.shown_text()), (Ok(()), "null:x,secrets=2"));
}

#[test]
fn every_port_has_a_moderation_and_a_bad_one_is_refused_with_what_to_write() {
    let mode = |text| {
        parse(text).map(|spec: Spec| {
            spec.finish().unwrap();
            spec.moderation.map(|mode| mode.to_string())
        })
    };
    assert_eq!(mode("packet:x"), Ok(None));
    assert_eq!(mode("packet:x,moderation=napi"), Ok(Some("napi".into())));
    let fixed = "packet:x,moderation=fixed:usecs=70,frames=9";
    assert_eq!(mode(fixed), Ok(Some("fixed:usecs=70,frames=9".into())));
    for (text, why, fix) in [
        ("packet:x,moderation=nappi", "no mode 'nappi'", "did you mean napi"),
        ("packet:x,moderation", "no mode ''", "interrupt napi"),
        ("packet:x,moderation=fixed:frames=0", "not '0'", "32 packets"),
        ("packet:x,moderation=fixed:usecs=1,usecs=2", "'usecs' is given twice", "leave out"),
    ] {
        let e = parse(text).unwrap_err();
        assert!(e.code == Code::PortSyntax && e.why.contains(why), "{e}");
        assert!(e.what.contains(text) && e.fix.contains(fix), "{e}");
    }
}

#[test]
fn rest_of_a_path_with_a_comma_is_refused_as_such() {
    let fix = |text| crate::plan(text).err().unwrap().fix;
    assert!(fix("pcap:/tmp/a,b.pcap").starts_with("a comma begins an option, so no name or path"));
    assert!(fix("pcap:/tmp/a,b").starts_with("options: "));
}

#[test]
fn unknown_option_is_an_error() {
    let s = parse("packet:x,mtv=1").unwrap();
    assert_eq!(s.value("mtu", str::parse::<u32>).unwrap(), None);
    let e = s.finish().unwrap_err();
    assert!(e.why.contains("no option 'mtv'") && e.fix.contains("mtu"), "{e}");
    for (text, fix) in [
        ("packet:x,udp=80,443,8080,all", "several numbers are joined by +: udp=80+443+8080"),
        ("packet:x,udp,443", "options: "),
        ("packet:x,ring=64,443", "options: "),
        ("packet:x,udp=80,many", "options: "),
    ] {
        let s = parse(text).unwrap();
        for key in ["udp", "ring"] {
            let _ = s.value(key, str::parse::<u32>);
        }
        assert!(s.finish().unwrap_err().fix.starts_with(fix), "{text}");
    }
    for (option, fix) in [
        ("qdisc=fq_codel", "linerate::qdisc::Shaped"),
        ("shape=10Mbit", "linerate::qdisc::Shaped"),
        ("tx_batch=8", "pass xmit a batch"),
    ] {
        let e = parse(&format!("packet:x,{option}")).unwrap().finish().unwrap_err();
        assert!(e.why.contains("in an engine and in the command") && e.fix.contains(fix), "{e}");
    }
    let s = parse("packet:x,mtu=large").unwrap();
    assert!(s.value("mtu", str::parse::<u32>).unwrap_err().why.contains("mtu=large"));
    assert!(parse("packet:x,a=maybe").unwrap().flag("a").is_err());
}
