//! Tests of doorbells, alarms and bounded waits.

use super::*;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(5);

#[test]
fn a_doorbell_is_readable_from_signal_to_drain() {
    let bell = EventFd::new().unwrap();
    assert!(!bell.drain());
    bell.signal();
    bell.signal();
    assert!(poll_readable(&[bell.as_fd()], Some(LONG)).unwrap());
    assert!(bell.drain());
    assert!(!bell.drain());
    assert!(!poll_readable(&[bell.as_fd()], Some(Duration::ZERO)).unwrap());
}

#[test]
fn a_doorbell_at_its_maximum_is_still_rung_without_blocking() {
    let bell = EventFd::new().unwrap();
    io::write(bell.as_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    bell.signal();
    assert!(bell.drain());
}

#[test]
fn doorbell_filled_by_a_peer_blocks_no_thread() {
    let bell = EventFd::new().unwrap();
    bell.signal_shared();
    assert!(bell.drain());
    io::write(bell.as_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
    io::ioctl_fionbio(bell.as_fd(), false).unwrap();
    bell.signal_shared();
    assert!(bell.drain());
}

#[test]
fn a_peers_blocking_doorbell_is_made_nonblocking() {
    let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let bell = EventFd::from_fd(fd).unwrap();
    assert!(!bell.drain());
}

#[test]
fn where_the_call_is_not_known_another_one_finds_the_same() {
    let (set, bell) = (Epoll::new().unwrap(), EventFd::new().unwrap());
    set.add(&bell, 7, EventFlags::IN).unwrap();
    let mut events = [NO_EVENT; 4];
    assert_eq!(set.wait_in_two(&mut events, Some(Duration::ZERO)), Ok(0));
    let start = Instant::now();
    assert_eq!(set.wait_in_two(&mut events, Some(Duration::from_millis(2))), Ok(0));
    assert!(start.elapsed() >= Duration::from_millis(2));
    bell.signal();
    assert_eq!(set.wait_in_two(&mut events, None), Ok(1));
    assert_eq!({ events[0].data }.u64(), 7);
    assert_eq!(set.wait_in_two(&mut [], Some(Duration::ZERO)), Err(Errno::INVAL));
}

#[test]
fn an_epoll_inside_an_epoll_is_readable_when_a_member_of_it_is() {
    let (outer, inner) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    let bell = EventFd::new().unwrap();
    inner.add(&bell, 7, EventFlags::IN).unwrap();
    outer.add(&inner, 9, EventFlags::IN).unwrap();
    let mut events = [NO_EVENT; 4];
    assert_eq!(outer.wait(&mut events, Some(Duration::ZERO)), Ok(0));
    bell.signal();
    assert_eq!(outer.wait(&mut events, Some(LONG)), Ok(1));
    assert_eq!({ events[0].data }.u64(), 9);
    assert!(poll_readable(&[outer.as_fd()], Some(Duration::ZERO)).unwrap());
    assert_eq!(inner.wait(&mut events, Some(LONG)), Ok(1));
    assert_eq!({ events[0].data }.u64(), 7);
    bell.drain();
    assert_eq!(outer.wait(&mut events, Some(Duration::ZERO)), Ok(0));
}

#[test]
fn a_member_can_be_changed_and_removed() {
    let (set, bell) = (Epoll::new().unwrap(), EventFd::new().unwrap());
    bell.signal();
    set.add(&bell, 1, EventFlags::IN).unwrap();
    assert_eq!(set.add(&bell, 1, EventFlags::IN), Err(Errno::EXIST));
    set.modify(&bell, 2, EventFlags::IN).unwrap();
    let mut events = [NO_EVENT; 1];
    assert_eq!(set.wait(&mut events, Some(LONG)), Ok(1));
    assert_eq!({ events[0].data }.u64(), 2);
    set.delete(&bell).unwrap();
    assert_eq!(set.wait(&mut events, Some(Duration::ZERO)), Ok(0));
    assert_eq!(set.delete(&bell), Err(Errno::NOENT));
}

#[test]
fn an_alarm_rings_at_its_time_and_not_before() {
    let alarm = TimerFd::new().unwrap();
    let at = Instant::now() + Duration::from_millis(3);
    alarm.set_at(Some(at)).unwrap();
    assert!(!alarm.drain());
    assert!(poll_readable(&[alarm.as_fd()], Some(LONG)).unwrap());
    assert!(Instant::now() >= at);
    assert!(alarm.drain());
    assert!(!alarm.drain());
}

#[test]
fn an_alarm_in_the_past_rings_now_and_one_turned_off_never() {
    let alarm = TimerFd::new().unwrap();
    alarm.set_at(Some(Instant::now() - Duration::from_millis(1))).unwrap();
    assert!(poll_readable(&[alarm.as_fd()], Some(LONG)).unwrap());
    alarm.set_at(None).unwrap();
    assert!(!poll_readable(&[alarm.as_fd()], Some(Duration::from_millis(2))).unwrap());
    assert!(!alarm.drain());
}

#[test]
fn a_bounded_wait_lasts_its_bound_and_less_than_a_millisecond_is_not_rounded_up() {
    let (set, bell) = (Epoll::new().unwrap(), EventFd::new().unwrap());
    let bound = Duration::from_micros(50);
    let mut events = [NO_EVENT; 1];
    let waits: [&mut dyn FnMut() -> bool; 2] =
        [&mut || poll_readable(&[bell.as_fd()], Some(bound)).unwrap(), &mut || {
            set.wait(&mut events, Some(bound)).unwrap() > 0
        }];
    for wait in waits {
        // The best of many: a busy machine makes single waits long, never short.
        let best = (0..50)
            .map(|_| {
                let start = Instant::now();
                assert!(!wait());
                start.elapsed()
            })
            .min()
            .unwrap();
        assert!(best >= bound && best < Duration::from_millis(1), "{best:?}");
    }
}

#[test]
fn an_interrupted_wait_keeps_its_bound() {
    extern "C" fn ignore(_: std::ffi::c_int) {}
    // SAFETY: the action is zeroed but for a handler that does nothing, which is async-signal
    // safe; SIGURG is otherwise unused here and ignored by default.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(std::ffi::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()), 0);
    }
    let (bell, set) = (EventFd::new().unwrap(), Epoll::new().unwrap());
    // SAFETY: no obligation; it names the calling thread, which outlives the scope below.
    let waiter = unsafe { libc::pthread_self() };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let bound = Duration::from_millis(20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                // SAFETY: the scope joins this thread before the waiter can end.
                unsafe { libc::pthread_kill(waiter, libc::SIGURG) };
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let start = Instant::now();
        assert!(!poll_readable(&[bell.as_fd()], Some(bound)).unwrap());
        let polled = start.elapsed();
        let start = Instant::now();
        assert_eq!(set.wait(&mut [NO_EVENT; 1], Some(bound)), Ok(0));
        let waited = start.elapsed();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(polled >= bound && polled < LONG, "{polled:?}");
        assert!(waited >= bound && waited < LONG, "{waited:?}");
    });
}

#[test]
fn many_descriptors_are_polled_and_none_is_a_sleep() {
    let (bell, rung) = (EventFd::new().unwrap(), EventFd::new().unwrap());
    rung.signal();
    let mut fds = [bell.as_fd(); POLL_FDS_MAX + 1];
    assert!(!poll_readable(&fds, Some(Duration::ZERO)).unwrap());
    fds[POLL_FDS_MAX] = rung.as_fd();
    assert!(poll_readable(&fds, None).unwrap());
    fds[POLL_FDS_MAX] = bell.as_fd();
    assert!(!poll_readable(&fds[1..], Some(Duration::ZERO)).unwrap());
    assert!(!poll_readable(&[], Some(Duration::from_micros(1))).unwrap());
}

#[test]
fn a_pipe_is_writable_until_it_is_full_and_again_when_it_was_read() {
    let (reader, writer) = std::io::pipe().unwrap();
    io::ioctl_fionbio(&writer, true).unwrap();
    assert!(is_writable(writer.as_fd()));
    while io::write(&writer, &[0; 4096]).is_ok() {}
    assert!(!is_writable(writer.as_fd()));
    assert!(io::read(&reader, &mut [0_u8; 1 << 16]).unwrap() > 0);
    assert!(is_writable(writer.as_fd()));
    assert!(!is_writable(reader.as_fd()), "the end that is read");
}
