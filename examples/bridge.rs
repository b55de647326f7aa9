//! Two ports in a loop of your own: `bridge packet:eth0 packet:eth1 60s 16384` joins them for a
//! minute, with a pool of 16,384 frames. Without arguments, generated packets go to a sink for 2
//! seconds.

mod args;

use std::time::{Duration, Instant};

use linerate::{prelude::*, units};

/// Passes packets from one port to the other. While the other one has no room, they stay in
/// `batch`, and no more are received: the device's ring is the cheapest place to wait.
fn pass(from: &mut Port, to: &mut Port, batch: &mut Batch) {
    if batch.is_empty() {
        from.rx(batch);
    }
    to.xmit(batch);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    let arg = |i: usize, default| args.get(i).map_or(default, String::as_str);
    // Both in one pool, so that packets pass without a copy. For `xdp:` with rings of 1024 add 8192
    // frames for each queue of both beyond the first: a ring could take all frames otherwise.
    let pool = Pool::builder().frames(arg(3, "16384").parse()?).build()?;
    let mut west = Port::open_with(arg(0, "gen:rate=100kpps"), &pool)?;
    let mut east = Port::open_with(arg(1, "sink:"), &pool)?;
    eprintln!("{}\n{}", west.obtained(), east.obtained());
    let end = Instant::now() + units::duration(arg(2, "2s"))?;
    let mut ways = [Batch::with_capacity(64), Batch::with_capacity(64)];
    loop {
        let [eastward, westward] = &mut ways;
        pass(&mut west, &mut east, eastward);
        pass(&mut east, &mut west, westward);
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let soon = Some(left.min(Duration::from_millis(1)));
        match (eastward.is_empty(), westward.is_empty()) {
            (true, true) => wait_any(&mut [&mut west, &mut east], Some(left))?,
            // Nothing is received from `west` now: wait for room in `east`, or packets of it.
            (false, true) => east.wait_for(Want::Both, soon)?,
            (true, false) => west.wait_for(Want::Both, soon)?,
            (false, false) => west.wait_for(Want::Room, soon)?,
        };
    }
    ways.iter_mut().for_each(|batch| batch.discard(DropReason::STOPPED));
    drop((west, east)); // waits for the devices to send what they have
    println!("{}", pool.ledger());
    Ok(())
}
