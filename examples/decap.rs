//! Takes packets out of their tunnels (IP in IP) between two ports, until its input ends: `decap TUNNEL SERVERS`.
//! Other packets pass unchanged.

mod args;
mod until;

use linerate::prelude::*;

struct Decap;

impl Stage for Decap {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        batch.retain(|skb| match skb.pop_ip() {
            Err(DropReason::UNWANTED) => Ok(()), // not from a tunnel
            done => done,
        });
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    let [tunnel, servers] = &args[..] else {
        return Err("usage: decap PORT PORT".into());
    };
    let engine = Engine::builder().port("tunnel", tunnel).port("servers", servers);
    until::input_ends(engine.wire("tunnel", "servers").stage(|_| Decap).build()?)
}
