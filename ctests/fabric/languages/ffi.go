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

func is(got, want interface{}, name string) {
	count++
	if got == want {
		fmt.Printf("ok %d - %s\n", count, name)
	} else {
		fmt.Printf("not ok %d - %s\n# got %v, want %v\n", count, name, got, want)
	}
}

// Checks that the reason of the last failure has a word.
func says(word string) {
	reason := C.GoString(C.rdmamr_last_reason())
	is(strings.Contains(reason, word), true, "in words: "+reason)
}

func openDevice() *C.struct_ibv_context {
	// The list ends with a NULL.
	for _, device := range (*[1 << 20]*C.struct_ibv_device)(unsafe.Pointer(C.ibv_get_device_list(nil)))[:] {
		if C.GoString(C.ibv_get_device_name(device)) == os.Getenv("CHECK_DEVICE") {
			return C.ibv_open_device(device)
		}
	}
	return nil
}

func main() {
	// rdmamr_last_reason() reports the last failure of its thread, and Go moves a goroutine to
	// another thread between two calls.
	runtime.LockOSThread()

	context := openDevice()
	pd := C.ibv_alloc_pd(context)
	// Memory of Go's heap may be registered too, but the program then has to pin it for Go.
	at := C.mmap(nil, 17*page, C.PROT_READ|C.PROT_WRITE, C.MAP_PRIVATE|C.MAP_ANONYMOUS, -1, 0)
	absent := unsafe.Pointer(uintptr(at) + 16*page)
	C.munmap(absent, page)

	var domain *C.struct_fid_domain
	var mr, none *C.struct_fid_mr
	var segment C.struct_rdmamr_segment
	room := C.size_t(1)
	is(C.rdmamr_domain_open(nil, nil, &domain, nil), C.int(-C.EINVAL), "a domain without a PD is EINVAL")
	says("NULL")
	attr := C.struct_rdmamr_domain_attr{size: C.sizeof_struct_rdmamr_domain_attr, api_version: 1<<16 | 17}
	is(C.rdmamr_domain_open(pd, &attr, &domain, nil), C.int(0), "a domain")
	is(C.fi_mr_reg(domain, at, 16*page, all, 0, 0x77, 0, &mr, nil), C.int(0), "fi_mr_reg")
	is(C.fi_mr_reg(domain, absent, page, all, 0, 0x78, 0, &none, nil), C.int(-C.EFAULT), "unmapped memory is EFAULT")
	says("mapped")
	is(C.fi_mr_key(mr), C.uint64_t(0x77), "fi_mr_key is the requested key")
	is(mr.key, C.uint64_t(0x77), "so is the object's field")
	is(C.rdmamr_resolve(domain, 0x99, 0, 8, &segment, &room), C.int(-enokey), "an unknown key is ENOKEY")
	is(C.rdmamr_resolve(domain, 0x77, 100, 50, &segment, &room), C.int(0), "rdmamr_resolve")
	is(segment.length, C.uint64_t(50), "of 50 bytes")
	is(uintptr(segment.addr)%page, uintptr(100), "100 bytes into the page")
	is(C.descriptor(mr) != 0, true, "fi_mr_desc is an lkey")
	is(C.fi_close(&domain.fid), C.int(-C.EBUSY), "a domain with a region is EBUSY")
	is(C.fi_close(&mr.fid), C.int(0), "fi_close of the region")
	is(C.fi_close(&domain.fid), C.int(0), "fi_close of the domain")
	is(C.ibv_dealloc_pd(pd), C.int(0), "ibv_dealloc_pd")
	is(C.ibv_close_device(context), C.int(0), "ibv_close_device")
	fmt.Printf("1..%d\n", count)
}
