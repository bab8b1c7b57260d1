// SPDX-License-Identifier: MIT OR Apache-2.0

// libfabric's memory calls from Go, by cgo. The header declares them as symbols of librdmamr, so the
// program needs neither libfabric nor its headers:
//
//	CGO_LDFLAGS="-L FOLDER" go build ffi.go
//
// The device is CHECK_DEVICE. The program prints TAP.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../../../include
#cgo LDFLAGS: -lrdmamr -libverbs
#define RDMAMR_NO_LIBFABRIC
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <infiniband/verbs.h>
#include <rdmamr.h>
#include <rdmamr/fi_mr.h>

// The lkey is a number in the type of a pointer. Go's runtime ends a program that has a pointer
// below 4096 on its stack.
static inline uintptr_t descriptor(struct fid_mr *mr) { return (uintptr_t)fi_mr_desc(mr); }
*/
import "C"

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"
)

const (
	page = 4096
	all  = C.FI_READ | C.FI_WRITE | C.FI_RECV | C.FI_SEND | C.FI_REMOTE_READ | C.FI_REMOTE_WRITE
	// libfabric's own error, of <rdma/fi_errno.h>.
	enokey = 266
)

var count int

func ok(passed bool, name string) {
	count++
	if !passed {
		fmt.Print("not ")
	}
	fmt.Printf("ok %d - %s\n", count, name)
}

func is(got, want interface{}, name string) {
	ok(got == want, name)
	if got != want {
		fmt.Printf("# got %v, want %v\n", got, want)
	}
}

func must(condition bool, what string) {
	if !condition {
		fmt.Printf("Bail out! %s\n", what)
		os.Exit(1)
	}
}

func reason() string { return C.GoString(C.rdmamr_last_reason()) }

func openDevice() *C.struct_ibv_context {
	devices := C.ibv_get_device_list(nil)
	must(devices != nil, "ibv_get_device_list")
	defer C.ibv_free_device_list(devices)
	// The list ends with a NULL.
	for _, device := range (*[1 << 20]*C.struct_ibv_device)(unsafe.Pointer(devices))[:] {
		if device == nil {
			break
		}
		if C.GoString(C.ibv_get_device_name(device)) == os.Getenv("CHECK_DEVICE") {
			return C.ibv_open_device(device)
		}
	}
	return nil
}

// The number of bytes that the kernel counts as pinned.
func pinned() int {
	status, _ := os.ReadFile("/proc/self/status")
	kib := -1
	for _, line := range strings.Split(string(status), "\n") {
		fmt.Sscanf(line, "VmPin: %d kB", &kib)
	}
	return kib * 1024
}

func register(domain *C.struct_fid_domain, at unsafe.Pointer, length int, access, key uint64) (C.int, *C.struct_fid_mr) {
	var mr *C.struct_fid_mr
	ret := C.fi_mr_reg(domain, at, C.size_t(length), C.uint64_t(access), 0, C.uint64_t(key), 0, &mr, nil)
	return ret, mr
}

func resolve(domain *C.struct_fid_domain, key, offset uint64, length int) (C.int, []C.struct_rdmamr_segment) {
	var segments [16]C.struct_rdmamr_segment
	room := C.size_t(len(segments))
	ret := C.rdmamr_resolve(domain, C.uint64_t(key), C.uint64_t(offset), C.size_t(length), &segments[0], &room)
	if ret != 0 {
		return ret, make([]C.struct_rdmamr_segment, 1)
	}
	return ret, segments[:room]
}

func main() {
	// rdmamr_last_reason() reports the last failure of its thread, and Go moves a goroutine to
	// another thread between two calls.
	runtime.LockOSThread()

	context := openDevice()
	must(context != nil, "there is no device CHECK_DEVICE")
	pd := C.ibv_alloc_pd(context)
	must(pd != nil, "ibv_alloc_pd")
	// Memory of Go's heap may be registered too, but the program then has to pin it for Go.
	at := C.mmap(nil, 17*page, C.PROT_READ|C.PROT_WRITE, C.MAP_PRIVATE|C.MAP_ANONYMOUS, -1, 0)
	must(uintptr(at) != ^uintptr(0), "mmap")
	absent := unsafe.Pointer(uintptr(at) + 16*page)
	C.munmap(absent, page)
	memory := unsafe.Slice((*byte)(at), 16*page)
	copy(memory, bytes.Repeat([]byte{0x55}, len(memory)))

	var domain *C.struct_fid_domain
	is(C.rdmamr_domain_open(nil, nil, &domain, nil), C.int(-C.EINVAL), "a domain without a PD is EINVAL")
	ok(strings.Contains(reason(), "NULL"), "in words: "+reason())
	attr := C.struct_rdmamr_domain_attr{size: C.sizeof_struct_rdmamr_domain_attr, api_version: 1<<16 | 17}
	is(C.rdmamr_domain_open(pd, &attr, &domain, nil), C.int(0), "a domain")
	must(domain != nil, "no domain")

	ret, mr := register(domain, at, len(memory), all, 0x77)
	is(ret, C.int(0), "fi_mr_reg")
	must(mr != nil, "no region")
	bytesPinned := pinned()
	ok(bytesPinned == len(memory) || bytesPinned == 2*len(memory), fmt.Sprintf("the memory is pinned: %d bytes", bytesPinned))
	is(C.fi_mr_key(mr), C.uint64_t(0x77), "fi_mr_key is the requested key")
	is(mr.key, C.uint64_t(0x77), "so is the object's field")
	var local [16]C.struct_rdmamr_segment
	room := C.size_t(len(local))
	is(C.rdmamr_mr_segments(mr, &local[0], &room), C.int(0), "rdmamr_mr_segments")
	is(room, C.size_t(1), "has one segment")
	is(uintptr(local[0].addr), uintptr(at), "which begins at the buffer")
	is(local[0].length, C.uint64_t(len(memory)), "and is as long as the buffer")
	is(C.descriptor(mr), C.uintptr_t(local[0].lkey), "fi_mr_desc is the segment's lkey")

	ret, again := register(domain, at, page, all, 0x77)
	is(ret, C.int(-enokey), "a key in use is ENOKEY")
	ok(again == nil && reason() != "", "in words: "+reason())
	ret, _ = register(domain, at, page, 1, 0x78)
	is(ret, C.int(-C.EINVAL), "an unknown access is EINVAL")
	ret, _ = register(domain, absent, page, all, 0x78)
	is(ret, C.int(-C.EFAULT), "unmapped memory is EFAULT")
	ok(strings.Contains(reason(), "mapped"), "in words: "+reason())

	ret, remote := resolve(domain, 0x77, 100, 50)
	is(ret, C.int(0), "rdmamr_resolve")
	is(len(remote), 1, "has one segment")
	is(remote[0].length, C.uint64_t(50), "of 50 bytes")
	is(uintptr(remote[0].addr)%page, uintptr(100), "100 bytes into the page")
	is(remote[0].rkey, local[0].rkey, "with the region's rkey")
	ret, _ = resolve(domain, 0x77, 16*page-8, 16)
	is(ret, C.int(-C.EINVAL), "a range past the region's end is EINVAL")
	ret, _ = resolve(domain, 0x99, 0, 8)
	is(ret, C.int(-enokey), "an unknown key is ENOKEY")

	is(C.fi_close(&domain.fid), C.int(-C.EBUSY), "a domain with a region is EBUSY")
	is(C.fi_close(&mr.fid), C.int(0), "fi_close of the region")
	is(pinned(), 0, "nothing is pinned")
	is(C.fi_close(nil), C.int(-C.EINVAL), "fi_close of NULL is EINVAL")
	is(C.fi_close(&domain.fid), C.int(0), "fi_close of the domain")
	ok(bytes.Equal(memory, bytes.Repeat([]byte{0x55}, len(memory))), "the memory is unchanged")
	is(C.ibv_dealloc_pd(pd), C.int(0), "ibv_dealloc_pd")
	is(C.ibv_close_device(context), C.int(0), "ibv_close_device")
	fmt.Printf("1..%d\n", count)
}
