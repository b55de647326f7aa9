//! Divides the packets of a port between two captures, each written by its own thread; both
//! directions of a flow go to the same capture: `splitter pcap:all.pcapng one.pcapng other.pcapng`.

mod args;

use linerate::prelude::*;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let args = args::texts()?;
    let [source, one, other] = &args[..] else {
        return Err("usage: splitter PORT FILE FILE".into());
    };
    let pool = Pool::builder().frames(8192).build()?;
    let mut source = Port::open_with(source, &pool)?;
    let (mut rings, mut threads) = (Vec::new(), Vec::new());
    for file in [one, other] {
        let file = Port::open_with(&format!("pcap:{file},write"), &pool)?;
        let (near, far) = Port::pair(1024, &pool)?;
        rings.push((near, Batch::with_capacity(64)));
        threads.push(std::thread::spawn(|| write(far, file)));
    }
    let mut done = divide(&mut source, &mut rings).map_err(Failure::from);
    drop(rings); // ends the threads once they have written everything
    for thread in threads {
        done = done.and(thread.join().map_err(|_| "a writer panicked")?);
    }
    println!("{}", pool.ledger());
    done
}

/// Divides packets until the source ends or fails.
fn divide(source: &mut Port, rings: &mut [(Port, Batch)]) -> linerate::Result<()> {
    let mut batch = Batch::with_capacity(64);
    while source.wait(None)? {
        source.rx(&mut batch);
        for skb in batch.drain() {
            let (_, lane) = &mut rings[skb.flow_hash() as usize % 2];
            let _ = lane.push(skb); // has room for the whole batch
        }
        for (ring, lane) in &mut *rings {
            while !lane.is_empty() && !ring.health().ended() {
                if ring.xmit(lane) == 0 {
                    ring.wait_for(Want::Room, None)?;
                }
            }
            lane.discard(DropReason::PEER_GONE);
        }
    }
    Ok(())
}

fn write(mut ring: Port, mut file: Port) -> Result<(), Failure> {
    let mut batch = Batch::with_capacity(64);
    while ring.wait(None)? {
        ring.rx(&mut batch);
        file.xmit(&mut batch);
        batch.discard(DropReason::WRITE_FAILED);
    }
    Ok(file.health().check()?)
}
