//! Streams whose every packet is verified, through testpmd, and with either side killed under load.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Asked;
use super::peers::{Device, Role, no_huge_pages, ours, testpmd};
use crate::eta;
use crate::veth::child::Running;
use crate::veth::programs::{DUT_CPU, GENERATOR_CPU};

/// Slow enough that testpmd, which drops what it has no room for, keeps up on a CPU that is shared.
const RATE: &str = "100kpps";
/// Between a start and the next kill.
const UNDER_LOAD: Duration = Duration::from_millis(300);
/// Testpmd may die of one in so many of our ends.
const CRASHES: usize = 10;
/// Time limit for a program to end.
const GRACE: Duration = Duration::from_secs(20);

/// Our role and options on either side of testpmd.
struct Way {
    name: &'static str,
    role: Role,
    options: &'static str,
    /// Testpmd is the client, and what we map is its own memory.
    theirs: bool,
}

const WAYS: [Way; 4] = [
    Way { name: "client, zero copy", role: Role::Client, options: "", theirs: false },
    Way { name: "client, by copies", role: Role::Client, options: ",zerocopy=no", theirs: false },
    Way { name: "server, by copies", role: Role::Server, options: "", theirs: false },
    Way {
        name: "server, in testpmd's own memory",
        role: Role::Server,
        options: ",trust=yes",
        theirs: true,
    },
];

/// The two sockets of a chain.
struct Chain {
    sockets: [PathBuf; 2],
}

impl Chain {
    fn new(asked: &Asked) -> Chain {
        let sockets = ["in.sock", "out.sock"].map(|name| asked.folder.join(name));
        for socket in &sockets {
            let _ = fs::remove_file(socket);
        }
        Chain { sockets }
    }

    fn testpmd(&self, role: Role, zero_copy: bool, asked: &Asked) -> Result<Running> {
        let [a, b] = self.sockets.each_ref().map(|socket| Device { socket, role, zero_copy });
        testpmd("between", &[a, b], "io", GENERATOR_CPU, &asked.folder)
    }

    fn port(&self, which: usize, role: Role, options: &str) -> String {
        format!("memif:{},role={}{options}", self.sockets[which].display(), role.as_str())
    }

    /// Ours behind testpmd, which verifies what comes; for so long, then it reports.
    fn sink(&self, role: Role, options: &str, time: Duration, asked: &Asked) -> Result<Running> {
        let (port, time) = (self.port(1, role, options), format!("{}ms", time.as_millis()));
        let args = ["forward", &port, "sink:", "--for", &time, "--json"];
        ours(asked, "linerate", &args, DUT_CPU, "sink")
    }

    /// Ours before testpmd, which sends.
    fn source(&self, role: Role, options: &str, time: Duration, asked: &Asked) -> Result<Running> {
        let port = self.port(0, role, options);
        let (source, time) =
            (format!("gen:,rate={RATE},size=imix"), format!("{}ms", time.as_millis()));
        let args = ["forward", &source, &port, "--for", &time, "--json"];
        ours(asked, "linerate", &args, DUT_CPU, "source")
    }
}

/// Each way, for as long as was asked.
pub fn verified(asked: &Asked) -> Result<()> {
    println!(
        "memif soak: {} s each, {RATE} of 64 to 1518 bytes, verified behind testpmd",
        asked.soak.as_secs()
    );
    for Way { name, role, options, theirs } in WAYS {
        if let Some(why) = no_huge_pages().filter(|_| theirs) {
            println!("{name:<38} skipped: {why}");
            continue;
        }
        eprintln!("soak, {name}: {} s", asked.soak.as_secs());
        let chain = Chain::new(asked);
        let (sink, source, _between) = match role {
            Role::Client => {
                let mut between = chain.testpmd(role.other(), theirs, asked)?;
                between.until("listens", || Ok(chain.sockets.iter().all(|s| s.exists())))?;
                let (sink, source) = start(&chain, role, options, asked)?;
                (sink, source, between)
            }
            Role::Server => {
                let (mut sink, source) = start(&chain, role, options, asked)?;
                sink.until("listens", || Ok(chain.sockets.iter().all(|s| s.exists())))?;
                (sink, source, chain.testpmd(role.other(), theirs, asked)?)
            }
        };
        let sent = report(source, "source", asked.soak + GRACE, asked)?;
        let came = report(sink, "sink", asked.soak + GRACE, asked)?;
        println!("{}", verdict(name, &sent, &came)?);
    }
    Ok(())
}

fn start(chain: &Chain, role: Role, options: &str, asked: &Asked) -> Result<(Running, Running)> {
    // It outlives its source, and hears the last packet.
    let sink = chain.sink(role, options, asked.soak + Duration::from_secs(6), asked)?;
    Ok((sink, chain.source(role, options, asked.soak + Duration::from_secs(3), asked)?))
}

/// Waits until a program of ours has ended; what it reports.
fn report(mut program: Running, name: &str, patience: Duration, asked: &Asked) -> Result<Value> {
    let begun = Instant::now();
    while program.still().is_ok() {
        if begun.elapsed() > patience {
            bail!("{name} does not end");
        }
        sleep(Duration::from_millis(50));
    }
    let path = asked.folder.join(format!("{name}.log"));
    let text = fs::read_to_string(&path)?;
    let json = text.lines().find(|line| line.starts_with('{'));
    let json = json.with_context(|| format!("{} has no report", path.display()))?;
    Ok(serde_json::from_str(json)?)
}

/// One line of what both ends say; a failure if anything but loss between them was seen.
fn verdict(name: &str, sent: &Value, came: &Value) -> Result<String> {
    let number = |of: &Value, path: &str| of.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let balanced = |of: &Value| of.pointer("/ledger/balanced") == Some(&Value::Bool(true));
    let verified = number(came, "/verify/packets");
    let wrong: u64 = ["corrupted", "reordered", "duplicated", "late"]
        .iter()
        .map(|what| number(came, &format!("/verify/{what}")))
        .sum();
    let (out, lost) = (number(sent, "/ledger/sent"), number(came, "/verify/lost"));
    let copied = |of: &Value, port: usize| number(of, &format!("/ports/{port}/copied_bytes"));
    let line = format!(
        "{name:<38} sent {out}, verified {verified}, lost on the way {lost}, wrong {wrong}; copied out {} \
         B, in {} B; ledgers {}",
        copied(sent, 1),
        copied(came, 0),
        if balanced(sent) && balanced(came) { "balanced" } else { "NOT BALANCED" }
    );
    if verified == 0 || wrong > 0 || !balanced(sent) || !balanced(came) {
        bail!("{line}");
    }
    Ok(line)
}

/// Testpmd killed under load, then ours before it, each as often as was asked; packets pass again each time.
pub fn restarted(asked: &Asked) -> Result<()> {
    let whole = Duration::from_secs(24 * 3600);
    for Way { name, role, options, theirs } in [&WAYS[0], &WAYS[2]] {
        let (role, theirs) = (*role, *theirs);
        let (chain, begun) = (Chain::new(asked), Instant::now());
        let mut longest = Duration::ZERO;
        // Ours stay; testpmd comes and goes.
        let mut sink = chain.sink(role, options, whole, asked)?;
        let mut source = chain.source(role, options, whole, asked)?;
        for n in 0..asked.restarts {
            eprintln!(
                "testpmd's restarts, {name}: {n}{}",
                eta::told(begun.elapsed(), n, asked.restarts)
            );
            if role == Role::Client {
                for socket in &chain.sockets {
                    let _ = fs::remove_file(socket);
                }
            }
            let (started, mut between) =
                (Instant::now(), chain.testpmd(role.other(), theirs, asked)?);
            passes(&mut between, asked)?;
            longest = longest.max(started.elapsed());
            sleep(UNDER_LOAD);
            sink.still()?;
            source.still()?;
        }
        println!(
            "{name:<38} testpmd killed {} times: packets passed each time, within {longest:.1?} of its start",
            asked.restarts
        );
        drop((sink, source));
        if role == Role::Server {
            // A client of testpmd's connects once, when it starts: it does not outlive its server.
            continue;
        }
        ours_restarted(name, options, asked)?;
    }
    Ok(())
}

/// Ours before testpmd killed under load, as a client.
///
/// Testpmd 22.11 dies of that now and then, by a fault in its forwarding thread, in its memif driver: that is
/// counted, and it is started anew; more than now and then is a failure.
fn ours_restarted(name: &str, options: &str, asked: &Asked) -> Result<()> {
    let whole = Duration::from_secs(24 * 3600);
    let chain = Chain::new(asked);
    let log = |n: usize| asked.folder.join(format!("between.crash-{n}.log"));
    let listening = || -> Result<Running> {
        chain.sockets.iter().for_each(|socket| drop(fs::remove_file(socket)));
        let mut between = chain.testpmd(Role::Server, false, asked)?;
        between.until("listens", || Ok(chain.sockets.iter().all(|s| s.exists())))?;
        Ok(between)
    };
    let mut between = listening()?;
    let mut sink = chain.sink(Role::Client, options, whole, asked)?;
    let (begun, mut crashes) = (Instant::now(), 0);
    for n in 0..asked.restarts {
        eprintln!("our restarts, {name}: {n}{}", eta::told(begun.elapsed(), n, asked.restarts));
        let source = chain.source(Role::Client, options, whole, asked)?;
        // The second that is told next has packets of the one before.
        let before = forwarded(asked)? + 1;
        between.until("passes packets", || Ok(forwarded(asked)? > before))?;
        sleep(UNDER_LOAD);
        sink.still()?;
        drop(source);
        sleep(UNDER_LOAD);
        if between.has_crashed()? {
            fs::rename(asked.folder.join("between.log"), log(crashes))?;
            crashes += 1;
            if crashes * CRASHES > asked.restarts.max(CRASHES) {
                bail!("testpmd died {crashes} times of {} of our ends", n + 1);
            }
            between = listening()?;
        }
        between.still()?;
    }
    println!(
        "{name:<38} ours killed {} times: packets passed each time; testpmd died of {crashes} of these \
         ends, and was started anew",
        asked.restarts
    );
    Ok(())
}

/// Waits until testpmd, which was just started, passes packets.
fn passes(between: &mut Running, asked: &Asked) -> Result<()> {
    between.until("passes packets", || Ok(forwarded(asked)? > 0))
}

/// Seconds in which testpmd has sent something.
fn forwarded(asked: &Asked) -> Result<usize> {
    let rates = super::peers::printed("Tx-pps:", "between", &asked.folder)?;
    Ok(rates.into_iter().filter(|pps| *pps > 0).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn anything_but_loss_fails_a_soak() {
        let sent = json!({"ledger": {"sent": 10, "balanced": true}});
        let came = |verify: Value, balanced: bool| json!({"ledger": {"balanced": balanced}, "verify": verify});
        let good = came(json!({"packets": 9, "lost": 1}), true);
        assert!(verdict("x", &sent, &good).unwrap().contains("verified 9, lost on the way 1"));
        for bad in [
            came(json!({"packets": 9, "corrupted": 1}), true),
            came(json!({"packets": 9, "reordered": 1}), true),
            came(json!({"packets": 0}), true),
            came(json!({"packets": 9}), false),
        ] {
            assert!(verdict("x", &sent, &bad).is_err(), "{bad}");
        }
    }
}
