// SPDX-License-Identifier: MIT OR Apache-2.0

// Registers from Go through stacks.c, for stacks.sh, which links it.
package main

// int library_call(void);
import "C"

//go:noinline
func send() int { return int(C.library_call()) }

//go:noinline
func phase() int { return send() * 2 }

func main() {
	if phase() != 0 {
		panic("library_call")
	}
}
