/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* large_tls: a library with SIZE bytes of thread-local variables in the threads' static storage. */
__thread char storage[SIZE] __attribute__((tls_model("initial-exec")));

int large_tls(void);

int large_tls(void)
{
	storage[SIZE - 1]++;
	return storage[SIZE - 1];
}
