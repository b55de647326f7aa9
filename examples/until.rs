//! The end of programs that have no end of their own.

use std::time::Duration;

use linerate::Engine;

/// Runs `engine` until the program's input ends or a port fails, and prints the ledger.
pub(crate) fn input_ends(engine: Engine) -> Result<(), Box<dyn std::error::Error>> {
    let running = engine.start()?;
    eprintln!("ready");
    let waker = running.waker();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink()); // until it ends
        waker.wake();
    });
    let _ = running.wait(Duration::MAX); // `check` below has an error
    let stopped = running.stop(Duration::from_secs(1));
    println!("{stopped}");
    Ok(stopped.check()?)
}
