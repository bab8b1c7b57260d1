// SPDX-License-Identifier: MIT OR Apache-2.0
//! The refusals of this family that do not come from the kernel or from libibverbs: the code of
//! each, and the reason in words.

use rdmamr_abi::libfabric::*;
use rdmamr_mr::Error;

/// One row for each refusal: its name, its code, the reason.
macro_rules! refusals {
    ($($name:ident $code:path, $why:literal;)*) => {
        $(pub const $name: Error = Error::Refused($code, $why);)*
    };
}

refusals! {
    // Any object.
    OTHER_PROCESS FI_EINVAL, "the object belongs to the process that this one was forked from";
    NULL_OBJECT FI_EINVAL, "the object is NULL";
    OTHER_CLASS FI_EINVAL, "the object is of another class, or closed";
    NO_SLOT FI_ENOSYS, "the object's provider has not implemented the call";
    UNSUPPORTED FI_ENOSYS, "this object registers memory or reports it, and can do nothing else";
    NULL_ARGUMENT FI_EINVAL, "the argument is NULL";
    NULL_COUNT FI_EINVAL, "the count is NULL";
    NULL_ATTRIBUTES FI_EINVAL, "the attributes are NULL";

    // A fabric, and the provider.
    NO_DEVICE libc::ENODEV, "there is no verbs device of that name";
    NO_FABRIC FI_ENODATA, "the provider has no fabric of that name";
    FABRIC_IN_USE FI_EBUSY, "the fabric still has domains or queues";
    NULL_INFO FI_EINVAL, "the info is NULL";
    NULL_INFO_PLACE FI_EINVAL, "the place for the info is NULL";
    NO_DOMAIN_ATTRIBUTES FI_EINVAL, "the info has no domain attributes";
    NO_DOMAIN_NAME FI_EINVAL, "the info names no domain: take one of fi_getinfo()'s";
    NULL_OBJECTS FI_EINVAL, "the objects are NULL";
    OTHER_QUEUE FI_EINVAL, "an object is no event queue of this provider";
    QUEUE_NOT_EMPTY FI_EAGAIN, "a queue has events to be read";

    // The provider's offer, fi_getinfo(3).
    OFFER_NO_STACKING FI_ENODATA, "no provider can be stacked on it: it has no endpoints";
    OFFER_NO_ADDRESS FI_ENODATA, "it has no addresses";
    OFFER_NO_DEVICE FI_ENODATA, "there is no verbs device that it could open";
    OFFER_NO_ENDPOINT FI_ENODATA, "it has no such endpoints";
    OFFER_OTHER_FABRIC FI_ENODATA, "its fabric has another name";
    OFFER_IOV_LIMIT FI_ENODATA, "a region has at most 16 buffers";
    OFFER_CAPS FI_ENODATA, "it does not have all the capabilities that are asked for";
    OFFER_BY_NAME FI_ENODATA, "it only registers memory, so it must be asked for by name";
    OFFER_BASIC FI_ENODATA, "memory must be mapped when it is registered: FI_MR_BASIC";
    OFFER_ALLOCATED FI_ENODATA, "memory must be mapped when it is registered: FI_MR_ALLOCATED";

    // A domain.
    NULL_DOMAIN FI_EINVAL, "the domain is NULL";
    NULL_DOMAIN_PLACE FI_EINVAL, "the place for the domain is NULL";
    OTHER_DOMAIN FI_EINVAL, "the object is no domain of this library";
    ATTRIBUTES_SIZE FI_EINVAL, "the attributes' size is not sizeof(struct rdmamr_domain_attr)";
    ATTRIBUTES_UNKNOWN FI_EINVAL,
        "the attributes ask for what this version of the library does not know";
    UNKNOWN_MODE FI_EINVAL, "the mode has a bit that the library does not serve";
    UNKNOWN_CAPS FI_EINVAL, "the capabilities have a bit that the library does not serve";
    UNKNOWN_FLAGS FI_EINVAL, "the flags have a bit that the library does not serve";
    UNKNOWN_MR_MODE FI_EINVAL, "the mr_mode has a bit that the library does not serve";
    MODES_EXCLUDE FI_EINVAL, "FI_PROV_MR_ATTR and FI_MR_SCALABLE exclude each other";
    KEYS_NEED_ADDRESSES FI_EINVAL,
        "FI_MR_PROV_KEY needs FI_MR_VIRT_ADDR: a device cannot have each buffer begin at 0";
    KEY_SIZE FI_EINVAL, "the size of the application's keys must be 1 to 8 bytes";
    NO_ON_DEMAND FI_ENOSYS, "FI_DYNAMIC_MR: the device has no on-demand paging";
    HAS_REGIONS FI_EBUSY, "the domain still has regions that are not closed";
    HAS_RAW_KEYS FI_EBUSY, "the domain still has raw keys that are mapped";
    NULL_QUEUE FI_EINVAL, "the queue is NULL";
    NOT_A_QUEUE FI_EINVAL, "a domain can be bound to an event queue only";
    FOREIGN_QUEUE FI_EINVAL,
        "a domain can be bound to a queue of rdmamr_eq_open() or of the provider rdmamr only";
    BIND_FLAGS FI_EBADFLAGS, "a domain is bound with FI_REG_MR and no other flag";
    BOUND_ALREADY FI_EBUSY, "the domain is bound to a queue already";
    BOUND_TOO_LATE FI_EOPBADSTATE,
        "the domain has regions: bind the queue before the first registration";

    // A registration.
    NULL_REGION_PLACE FI_EINVAL, "the place for the region is NULL";
    UNKNOWN_ACCESS FI_EINVAL, "the access holds a bit that fi_mr(3) does not know";
    NO_LENGTH FI_EINVAL, "the length is 0";
    BUFFER_PAST_END FI_EINVAL, "address and length run past the end of the address space";
    NULL_BUFFERS FI_EINVAL, "the vector of buffers is NULL";
    BUFFER_COUNT FI_EINVAL, "the number of buffers must be 1 to 16";
    SUM_OF_LENGTHS FI_EINVAL, "the sum of the lengths is more than there are addresses";
    AUTHORIZATION FI_ENOSYS, "verbs have no authorization keys";
    SUB_REGION FI_ENOSYS, "there are no sub-regions (base_mr)";
    REGISTER_FLAGS FI_EBADFLAGS,
        "a flag that is not supported: of fi_mr_reg's there are RDMAMR_MR_KEY and RDMAMR_MR_OFFSET";
    NOT_YOUR_KEYS FI_EBADFLAGS, "FI_MR_KEY on a domain whose keys are the provider's";
    KEY_TOO_LARGE FI_EKEYREJECTED, "the requested key is larger than the domain's keys can be";
    KEY_IN_USE FI_ENOKEY, "the requested key is in use in this domain";
    NO_KEY_LEFT FI_ENOKEY, "each key that the domain can have is in use";
    OFFSET_WITHOUT_FLAG FI_EINVAL, "the offset must be 0 without FI_MR_OFFSET";
    OFFSET_IN_PAGE FI_EINVAL,
        "FI_MR_OFFSET with the provider's keys: the offset and the buffer must lie alike in their \
        pages";
    OFFSET_IWARP FI_ENOSYS,
        "FI_MR_OFFSET with the provider's keys: an iWARP device, and one that pages on demand, have a \
        buffer at its own address";
    REGION_PAST_END FI_EINVAL, "the region's addresses run past the end of the address space";
    CANCELLED FI_ECANCELED, "fi_close() came before it was begun";

    // A region.
    NULL_REGION FI_EINVAL, "the region is NULL";
    OTHER_REGION FI_EINVAL, "the object is no region of this library, or closed";
    CLOSED FI_EINVAL, "the region is closed already";
    CLOSED_OR_CLOSING FI_EINVAL, "the region is closed already, or just being";
    CLOSING FI_EINVAL, "the region is being closed";
    UNDER_WAY FI_EOPBADSTATE, "the registration has not completed yet";
    HAS_FAILED FI_EOPBADSTATE, "the registration has failed";
    REPLACED FI_EOPBADSTATE, "another region has replaced it";
    NULL_BOUND FI_EINVAL, "the queue or counter is NULL";
    NOT_BINDABLE FI_EINVAL, "a region is bound to an event queue or a counter";
    REGION_BIND_FLAGS FI_EBADFLAGS, "a region is bound with FI_REMOTE_WRITE and no other flag";
    NO_REMOTE_EVENTS FI_ENOSYS, "a verbs device does not report the writes of a remote peer to a region";
    NO_REFRESH FI_ENOSYS,
        "a region's pages are pinned when it is registered: close it and register anew";
    EMPTY_RANGE FI_EINVAL, "the range is empty, or runs past the end of the addresses";
    OUTSIDE_REGION FI_EINVAL, "the range is not within the region";
    SEGMENTS_TOO_SMALL FI_ETOOSMALL, "there are more segments than there is room for";

    // A key.
    NO_SUCH_KEY FI_ENOKEY, "there is no such key in this domain";
    KEY_WITHOUT_REGION FI_ENOKEY, "the key's region is not registered yet, or not any more";
    NULL_KEY FI_EINVAL, "the key is NULL";
    NOT_MAPPED FI_ENOKEY, "the key is not one of fi_mr_map_raw()";
    MAP_FLAGS FI_EBADFLAGS, "a raw key is mapped without flags";
    MAP_PLACES FI_EINVAL, "the raw key or the place for the key is NULL";
    RAW_KEY_FLAGS FI_EBADFLAGS, "a raw key is got without flags";
    RAW_KEY_PLACES FI_EINVAL, "the place for the base address or for the size is NULL";
    RAW_KEY_TOO_SMALL FI_ETOOSMALL, "the raw key does not fit into the buffer";
    RAW_KEY_BASE FI_EINVAL, "the base address is not that of the raw key";
    RAW_KEY_SIZE FI_EINVAL, "the raw key's size is not that of a raw key of this library";
    RAW_KEY_FOREIGN FI_EINVAL, "the raw key was not made by this library";
    RAW_KEY_DAMAGED FI_EINVAL, "the raw key is damaged: its check sum is wrong";
    RAW_KEY_LATER FI_EINVAL, "the raw key is of a later version";
    RAW_KEY_PIECE FI_EINVAL, "the raw key has a piece that is empty or has no end";
    RAW_KEY_PAST_END FI_EINVAL, "the raw key's pieces run past the end of the address space";

    // A queue of this library.
    NULL_QUEUE_PLACE FI_EINVAL, "the place for the queue is NULL";
    QUEUE_FLAGS FI_EBADFLAGS, "an event queue has no flag but FI_WRITE";
    QUEUE_WAIT_OBJECT FI_ENOSYS,
        "an event queue can be waited for by FI_WAIT_FD only, or not at all";
    QUEUE_IN_USE FI_EBUSY, "a domain is still bound to the queue";
    QUEUE_EMPTY FI_EAGAIN, "the queue is empty";
    ERROR_FIRST FI_EAVAIL, "the next event is an error: fi_eq_readerr() reads it";
    NO_ERROR_FIRST FI_EAGAIN, "the next event is no error";
    NULL_BUFFER FI_EINVAL, "the buffer is NULL";
    EVENT_TOO_LARGE FI_ETOOSMALL, "the event does not fit into the buffer";
    READ_FLAGS FI_EBADFLAGS, "an event is read with no flag but FI_PEEK";
    READ_ERROR_FLAGS FI_EBADFLAGS, "an error is read with no flag but FI_PEEK";
    NO_WAITING FI_EINVAL, "the queue was opened with FI_WAIT_NONE: nobody can wait for it";
    NO_DESCRIPTOR FI_ENODATA, "the queue was opened with FI_WAIT_NONE";
    NULL_EVENT FI_EINVAL, "the event is NULL";
    NOT_WRITABLE FI_EINVAL, "the queue was opened without FI_WRITE";
    WRITE_FLAGS FI_EBADFLAGS, "an event is written without flags";
}
