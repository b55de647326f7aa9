//! Requests whose answers have another length.

use super::*;

/// S1.23: as NFS reads and writes.
#[test]
fn requests_and_answers_of_different_lengths_are_carried_in_whole() {
    for (message, answer) in [("128", "8192"), ("8192", "128")] {
        let told = [("port", "packet"), ("workload", "rpc"), ("message", message)];
        let told = [&told[..], &[("answer", answer), ("cpus", "apart"), ("probes", "0")]].concat();
        let Some((_alone, mut bench)) = open(&settings(&told)) else { return };
        let window = bench.window(2 * WINDOW).unwrap();
        let figure = |name: &str| figure(&window, name);
        let [message, answer] = [message, answer].map(|bytes| bytes.parse::<f64>().unwrap());
        let (requests, responses) = (figure("requests"), figure("responses"));
        // One request of the connection may be on its way at either end of the window.
        assert!(responses > 2.0 && requests - responses <= 1.0, "{window:?}");
        assert!((figure("goodput_bytes") - message * requests).abs() <= message, "{window:?}");
        let carried = window.bytes.unwrap() as f64;
        assert!(carried >= (message + answer) * (responses - 1.0), "{window:?}");
        let ended = bench.finish().unwrap();
        assert!(ended.ledger.balanced && ended.ledger.in_flight == 0, "{ended:?}");
    }
}
