//! The workloads of post 004, as the experiment `skbinit` sets them up.

use super::*;

#[test]
fn workloads_are_counted_where_they_are_received_and_their_allocations_by_cpu() {
    let experiment = builtin("skbinit").unwrap();
    let cells = experiment.cells(false).filter(|(_, cell)| cell.scenario == "host");
    let mut seen = Vec::new();
    for (cell, side) in cells.flat_map(|(_, cell)| [(cell, &cell.a), (cell, &cell.b)]) {
        let place = Place { cpus: vec![0, 1], seed: 7, program: None, stop: Arc::default() };
        let config = Config::of(side, &place).unwrap();
        assert_eq!((config.adapters, config.sockbuf), (2, 65_536), "{:?}", cell.at);
        let Some((_alone, mut bench)) = open(side) else { return };
        // On a busy machine a worker or a reader may have no CPU during a whole window.
        let mut windows = (0..20).map(|_| bench.window(2 * WINDOW).unwrap());
        let is_whole = |window: &Window| {
            let starved = window.figure("starved_connections").unwrap_or(0.0);
            let allocs = |n| figure(window, &format!("allocs_w{n}")) > 0.0;
            // In a window of few calls, one of the two threads may have no timed call.
            let is_timed = !config.user_space || window.figure("buffer_ticks").is_some();
            starved == 0.0 && (0..window.threads.len()).all(allocs) && is_timed
        };
        let window = windows.find(is_whole).expect("a window in which all threads ran");
        drop(windows);
        let figure = |name: &str| figure(&window, name);
        assert!(figure("goodput_bytes") > 0.0 && figure("timed_calls") > 0.0, "{window:?}");
        let sampling = figure("sampling_ticks");
        assert!(sampling > 0.0 && sampling < 0.01 * figure("total_ticks"), "{window:?}");
        // The workers alternate between the two CPUs.
        let on = |cpu: usize| -> f64 {
            let workers = (cpu..window.threads.len()).step_by(2);
            workers.map(|worker| figure(&format!("allocs_w{worker}"))).sum()
        };
        // In user space the programs' threads, which are on the other CPU than the worker, allocate
        // what they send.
        let programs = figure("allocs") - on(0) - on(1);
        let most = if config.user_space { on(0).max(programs) } else { on(0).max(on(1)) };
        assert_eq!(figure("allocs_most"), most, "{window:?}");
        if config.workload == Workload::Stream {
            assert_eq!(config.message, 4096);
        } else {
            assert!(figure("responses") > 0.0, "{window:?}");
        }
        if config.user_space {
            assert!(figure("remote_frees") > 0.0, "another thread frees what the worker allocates");
            assert!(figure("free_ticks") > 0.0 && figure("buffer_ticks") > 0.0, "{window:?}");
        }
        seen.push((config.split, config.user_space, config.workload));
        assert!(bench.finish().unwrap().ledger.balanced);
    }
    let (stream, web) = (Workload::Stream, Workload::Web);
    let both = |at| [at, at];
    let each = [
        (false, false, stream),
        (true, false, stream),
        (true, false, web),
        (false, true, stream),
        (false, true, web),
    ];
    assert_eq!(seen, each.map(both).concat());
}
