//! Only the packet pool, in a program of your own: `pool [::]:7777 [lines]` prints log lines that
//! arrive as datagrams. No NIC, no privilege: a plain socket fills the frames, and a std channel
//! passes them to the thread that prints.

mod args;

use std::io::Write;
use std::net::UdpSocket;
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::thread;

use linerate_skb::{Batch, DropReason, Pool, Skb};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    let [address, lines @ ..] = &args[..] else {
        return Err("usage: pool [::]:7777 [lines]".into());
    };
    let mut left = lines.first().map_or(Ok(usize::MAX), |n| n.parse())?;

    let pool = Pool::builder().frames(4096).frame_size(2048).build()?;
    let (tx, rx) = sync_channel::<Skb>(1024); // fewer than the pool's frames
    let printer = thread::spawn(move || print(rx));
    let (socket, mut mem) = (UdpSocket::bind(address)?, pool.local()); // hot list: Send, !Sync
    eprintln!("listening on {}", socket.local_addr()?);
    let mut batch = Batch::with_capacity(32);
    'receive: while left > 0 {
        left -= mem.alloc(&mut batch, left.min(32));
        for mut skb in batch.drain() {
            let n = socket.recv(skb.spare_mut())?; // recv(2) truncates longer datagrams
            skb.commit(n);
            match tx.try_send(skb) {
                Ok(()) => {}
                Err(TrySendError::Full(skb)) => skb.discard(DropReason::TX_FULL), // our policy
                Err(TrySendError::Disconnected(_)) => break 'receive, // see `join` below
            }
        }
    }
    drop(tx); // ends the printer
    printer.join().map_err(|_| "the printer panicked")??;
    println!("{}", pool.ledger());
    Ok(())
}

fn print(packets: Receiver<Skb>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for skb in packets {
        out.write_all(skb.data())?;
        out.write_all(b"\n")?;
    } // dropped: any thread may free a frame
    Ok(())
}
