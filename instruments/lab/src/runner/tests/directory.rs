//! Tests of the runs' directory: names, documents, and files that are not this program's.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::record::{RequestRecord, Store, find, read, runs};
use linerate_testing::Scratch;

#[test]
fn runs_of_one_second_have_directories_of_their_own() {
    let scratch = Scratch::new();
    let request = Request { quick: true, ..request_in(&scratch.0, grid()) };
    let ids: Vec<String> = (0..3).map(|_| Simulated::new().run(&request).unwrap().run.id).collect();
    let runs = runs(&scratch.0).unwrap();
    assert_eq!(runs.len(), 3);
    for ((head, _), id) in runs.iter().zip(&ids) {
        assert_eq!((head.id.as_str(), head.complete), (id.as_str(), true));
        let (time, name) = id.split_once('-').unwrap();
        assert!(name.starts_with("grid") && time.ends_with('Z') && time.len() == 16, "{id}");
    }
    assert_eq!(find(&scratch.0, "last"), Ok(scratch.0.join(&ids[2])));
    assert_eq!(find(&scratch.0, &ids[0]), Ok(scratch.0.join(&ids[0])));
    let e = find(&scratch.0, "20200101T000000Z-grid").unwrap_err();
    assert_eq!(e.code, Code::Run);
}

#[test]
fn a_run_is_read_as_it_was_returned_by_its_directory_and_by_its_file() {
    let scratch = Scratch::new();
    let run = Simulated::noisy(50).run(&request_in(&scratch.0, grid())).unwrap();
    let dir = scratch.0.join(&run.run.id);
    assert_eq!(read(&dir).as_ref(), Ok(&run));
    assert_eq!(read(&dir.join("run.json")).as_ref(), Ok(&run));
    assert!(!dir.join("run.json.part").exists());
    assert_eq!(fs::read_to_string(dir.join("experiment.toml")).unwrap(), TOML);
}

#[test]
fn a_broken_document_says_what_to_do_and_its_pairs_are_told_without_it() {
    let scratch = Scratch::new();
    let run = Simulated::new().run(&request_in(&scratch.0, grid())).unwrap();
    let dir = scratch.0.join(&run.run.id);
    let path = dir.join("run.json");
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let e = read(&dir).unwrap_err();
    let (from, to) = (path.display(), dir.display());
    let fix = format!("mv {from} {from}.broken && linerate lab report {to}");
    assert_eq!((e.code, e.fix.as_str()), (Code::Run, fix.as_str()));
    // The run is still the last one, because its head is intact.
    assert_eq!(find(&scratch.0, "last"), Ok(dir.clone()));
    fs::rename(&path, dir.join("run.json.broken")).unwrap();
    let again = read(&dir).unwrap();
    assert!(!again.run.complete && again.cells == run.cells);
}

#[test]
fn another_versions_run_is_refused_with_both_names() {
    let scratch = Scratch::new();
    let why = "written by another version (linerate-lab-run/0); this one reads linerate-lab-run/1";
    for name in ["run.json", "request.json"] {
        let dir = scratch.0.join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(name), "{\"schema\":\"linerate-lab-run/0\",\"odd\":[]}").unwrap();
        let e = read(&dir).unwrap_err();
        assert_eq!((e.code, e.why.as_str()), (Code::Run, why));
    }
    assert!(runs(&scratch.0).unwrap().is_empty());
    let e = find(&scratch.0, "last").unwrap_err();
    assert!(e.why.starts_with("there is no run in"), "{e}");
}

#[test]
fn a_directory_that_is_no_run_is_refused() {
    let scratch = Scratch::new();
    let dir = scratch.0.clone();
    let why = "it has no request.json: it is not a run, or was killed before it started";
    assert_eq!(read(&dir).unwrap_err().why, why);
    let request = Request { resume: Some(dir), ..request(grid()) };
    assert_eq!(Simulated::new().run(&request).unwrap_err().why, why);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0, "and nothing is written in it");
    assert_eq!(read(&PathBuf::from("/nonexistent")).unwrap_err().code, Code::File);
}

#[test]
fn the_request_of_an_interrupted_run_is_read_from_its_directory() {
    let scratch = Scratch::new();
    let only = vec![("size".into(), "small".into())];
    let request = Request { quick: true, only, ..request_in(&scratch.0, grid()) };
    let mut follower = Follower { until: Some(20), ..Follower::default() };
    let run = run_in(&Simulated::new(), &request, &mut follower).unwrap();
    let dir = scratch.0.join(&run.run.id);
    let again = Request::resuming(&dir).unwrap();
    assert_eq!((again.seed, again.quick, &again.only), (7, true, &request.only));
    assert_eq!((&again.place.cpus, &again.dir), (&request.place.cpus, &request.dir));
    assert_eq!(again.experiment.toml, TOML);
    let again = Request { experiment: grid(), ..again };
    assert!(Simulated::new().run(&again).unwrap().run.complete);
}

#[test]
fn the_last_run_is_the_one_that_began_last_whatever_its_directory_is_called() {
    let scratch = Scratch::new();
    let begun = |started: &str, name: &str| {
        let (_, state) = request_in(&scratch.0, grid()).begin(Json::Null).unwrap();
        let dir = scratch.0.join(&state.request.id);
        let request = RequestRecord { started: started.into(), ..state.request };
        fs::write(dir.join("request.json"), serde_json::to_vec(&request).unwrap()).unwrap();
        fs::rename(dir, scratch.0.join(name)).unwrap();
    };
    begun("2026-02-01T00:00:00Z", "first-by-name");
    begun("2026-01-01T00:00:00Z", "second-by-name");
    assert_eq!(find(&scratch.0, "last"), Ok(scratch.0.join("first-by-name")));
}

#[test]
fn the_second_run_of_a_name_has_the_number_two() {
    let scratch = Scratch::new();
    let request = request_in(&scratch.0, grid());
    let (_, state) = request.begin(Json::Null).unwrap();
    let id = state.request.id.clone();
    let of = |id: &str| {
        let mut again = RequestRecord { id: id.into(), ..state.request.clone() };
        Store::create(&scratch.0, &grid(), &mut again).unwrap();
        again.id
    };
    assert_eq!([of(&id), of(&id)], [format!("{id}-2"), format!("{id}-3")]);
}
