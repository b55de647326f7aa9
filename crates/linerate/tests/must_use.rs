//! Values that a program must not drop by mistake: the compiler warns if it does.
//!
//! Each statement expects the warning. Without the attribute the expectation is unfulfilled, which
//! is an error here.
#![deny(unfulfilled_lint_expectations)]

use std::time::Duration;

use linerate::wrap::tee::{Limits, Tee};
use linerate::{Batch, Engine, Pool, Result};

#[test]
fn an_engine_that_is_not_kept_is_a_warning() -> Result<()> {
    let engine = Engine::builder().port("in", "gen:").port("out", "sink:").wire("in", "out");
    let (engine, started) = (engine.build()?, std::time::Instant::now());
    #[expect(unused_must_use, reason = "it stops at once")]
    {
        engine.start()?;
    }
    assert!(started.elapsed() < Duration::from_secs(60));
    Ok(())
}

#[test]
fn a_capture_whose_writer_is_not_kept_is_a_warning() -> Result<()> {
    let tee = Tee::new(Limits::default())?;
    #[expect(unused_must_use, reason = "the capture ends at once")]
    {
        tee.start(std::io::sink())?;
    }
    // Another capture can begin, because that one has ended.
    assert_eq!(tee.start(std::io::sink())?.finish()?, 0);
    Ok(())
}

#[test]
fn packets_that_are_drained_into_nothing_are_a_warning() -> Result<()> {
    let pool = Pool::builder().frames(8).build()?;
    let mut batch = Batch::with_capacity(4);
    assert_eq!(pool.local().alloc(&mut batch, 4), 4);
    #[expect(unused_must_use, reason = "the packets stay")]
    {
        batch.drain();
    }
    assert_eq!(batch.len(), 4);
    Ok(())
}
