//! Objects of a protection domain: registered memory, and addresses.

use std::ptr::NonNull;
use std::sync::Arc;

use super::abi;
use super::library::Device;
use super::pair::Route;
use crate::error::Result;

/// A protection domain: requests name only memory and addresses of their own domain.
#[derive(Debug)]
pub struct Domain {
    pub(super) device: Arc<Device>,
    pub(super) raw: NonNull<abi::OfContext>,
}

// SAFETY: all calls of libibverbs may be made by several threads at once.
unsafe impl std::marker::Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Creates a domain of `device`.
    ///
    /// # Errors
    /// `E-SYSTEM` if the device has no more.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Domain>> {
        // SAFETY: the context is open.
        let raw = unsafe { (device.functions().ibv_alloc_pd)(device.raw.as_ptr()) };
        let raw = device.made(raw, "ibv_alloc_pd")?;
        Ok(Arc::new(Domain { device: device.clone(), raw }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: the domain is destroyed once, after all its objects, which hold references to it.
        unsafe { (self.device.functions().ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// A region of memory that requests may name. Only the device that has it may use it; no peer can,
/// because it is registered for local access alone.
#[derive(Debug)]
pub struct Memory {
    domain: Arc<Domain>,
    raw: NonNull<abi::Mr>,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: as for `Domain`; the memory is only named, never accessed.
unsafe impl std::marker::Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Registers `bytes` bytes from `base`, whose pages the kernel locks.
    ///
    /// # Errors
    /// `E-SYSTEM`; beyond the limit of locked memory, with the remedy.
    ///
    /// # Safety
    /// The memory stays mapped for as long as the value lives.
    pub unsafe fn register(
        domain: &Arc<Domain>,
        base: NonNull<u8>,
        bytes: usize,
    ) -> Result<Memory> {
        let functions = domain.device.functions();
        // SAFETY: the caller guarantees that the memory is mapped.
        let raw = unsafe {
            (functions.ibv_reg_mr)(
                domain.raw.as_ptr(),
                base.as_ptr().cast(),
                bytes,
                abi::ACCESS_LOCAL_WRITE,
            )
        };
        let raw = domain.device.made(raw, "ibv_reg_mr")?;
        Ok(Memory { domain: domain.clone(), raw, base, bytes })
    }

    /// Returns the part of a message that lies at `offset`; `None` if that is not within the
    /// region.
    #[inline]
    pub(super) fn sge(&self, offset: u64, len: u32) -> Option<abi::Sge> {
        let end = offset.checked_add(len.into())?;
        // SAFETY: the region is registered while this value lives, and its key does not change.
        let lkey = unsafe { (*self.raw.as_ptr()).lkey };
        let addr = (self.base.as_ptr().addr() as u64).wrapping_add(offset);
        (end <= self.bytes as u64).then_some(abi::Sge { addr, length: len, lkey })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the region is registered, and no request names it any more: queue pairs hold
        // references to it.
        unsafe { (self.domain.device.functions().ibv_dereg_mr)(self.raw.as_ptr()) };
    }
}

/// The address of a peer, or of a group, to which datagrams are sent.
#[derive(Debug)]
pub struct Address {
    domain: Arc<Domain>,
    pub(super) raw: NonNull<abi::OfContext>,
}

// SAFETY: as for `Domain`.
unsafe impl std::marker::Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// Resolves a route.
    ///
    /// Cost: a syscall that may wait for the answer of a neighbour: not for a worker.
    ///
    /// # Errors
    /// `E-SYSTEM` if no neighbour answers, or the route makes no sense.
    pub fn new(domain: &Arc<Domain>, route: &Route) -> Result<Address> {
        let mut attr = route.attr();
        // SAFETY: the library reads the structure that the header declares.
        let raw =
            unsafe { (domain.device.functions().ibv_create_ah)(domain.raw.as_ptr(), &mut attr) };
        let raw = domain.device.made(raw, "ibv_create_ah")?;
        Ok(Address { domain: domain.clone(), raw })
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        // SAFETY: the address is destroyed once; requests that name it have been posted, and are no
        // longer read.
        unsafe { (self.domain.device.functions().ibv_destroy_ah)(self.raw.as_ptr()) };
    }
}

/// Returns the number of requests that a call has taken: all `n`, or those before the bad one. All
/// of a call that failed and named no bad one: the device may read and write their memory, as when
/// only the doorbell failed.
pub(super) fn taken(ret: i32, first: usize, bad: usize, bytes: usize, n: usize) -> usize {
    if ret == 0 { n } else { (bad.wrapping_sub(first) / bytes).min(n) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_before_the_bad_one_were_taken() {
        let bytes = size_of::<abi::RecvWr>();
        assert_eq!(taken(0, 4096, 0, bytes, 5), 5);
        assert_eq!(taken(12, 4096, 4096, bytes, 5), 0);
        assert_eq!(taken(12, 4096, 4096 + 3 * bytes, bytes, 5), 3);
        assert_eq!(taken(12, 4096, 0, bytes, 5), 5, "no bad one is named");
    }
}
