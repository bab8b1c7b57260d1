/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "program.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include "tap.h"

void with_setting(char **argv, const char *name, const char *value)
{
	const char *now = getenv(name);

	if (now && !strcmp(now, value))
		return;
	must(setenv(name, value, 1) == 0);
	/* /proc/self is empty once the first thread has ended. */
	execv("/proc/thread-self/exe", argv);
	must(!"execv");
}

void go_on_with(char **argv, const char *name, const char *value)
{
	char count[16];

	snprintf(count, sizeof(count), "%d", tap_count);
	must(setenv("TAP_COUNT", count, 1) == 0);
	with_setting(argv, name, value);
	must(!"the setting is new");
}

void continue_report(void)
{
	if (getenv("TAP_COUNT"))
		tap_count = atoi(getenv("TAP_COUNT"));
}

pthread_t must_start(void *(*function)(void *), void *argument)
{
	pthread_t thread;

	must(pthread_create(&thread, NULL, function, argument) == 0);
	return thread;
}

void *must_join(pthread_t thread)
{
	void *returned;

	must(pthread_join(thread, &returned) == 0);
	return returned;
}

void in_thread(void *(*function)(void *), void *argument) { must_join(must_start(function, argument)); }

int threads_named(const char *name, pid_t *list, int most)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	int count = 0;

	must(tasks);
	while ((entry = readdir(tasks)) && count < most) {
		char path[300], has[32] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		file = fopen(path, "re");
		if (file && fgets(has, sizeof(has), file) && !strncmp(has, name, strlen(name)))
			list[count++] = atoi(entry->d_name);
		if (file)
			fclose(file);
	}
	closedir(tasks);
	return count;
}

static void *nothing(void *argument) { return argument; }

void become_threaded(void) { in_thread(nothing, NULL); }

/* By number: the library's cache ends if a program sets a filter by the C library's call. */
static int set_filter(struct sock_filter *filter, size_t length, unsigned flags)
{
	struct sock_fprog program = { (unsigned short)length, filter };

	if (syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

int filter_calls(long number, int argument, uint32_t value, uint32_t action, unsigned flags)
{
	const uint32_t offset = (uint32_t)(offsetof(struct seccomp_data, args) + (size_t)argument * sizeof(uint64_t));
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	return set_filter(filter, sizeof(filter) / sizeof(filter[0]), flags);
}

bool filter_each_in(const int *numbers, size_t count, uint32_t action, unsigned flags)
{
	struct sock_filter filter[2 * count + 2], *at = filter;

	*at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t n = 0; n < count; n++) {
		*at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)numbers[n], 0, 1);
		*at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
	}
	*at = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	return set_filter(filter, 2 * count + 2, flags) == 0;
}

bool refuse_calls(long number, int argument, uint32_t value, int error)
{
	return filter_calls(number, argument, value, SECCOMP_RET_ERRNO | (uint32_t)error, 0) == 0;
}

void copy_file(const char *original, const char *path, const char *const words[][2])
{
	int from = open(original, O_RDONLY | O_CLOEXEC), to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
	struct stat size;
	char *bytes;

	must(from >= 0 && to >= 0 && fstat(from, &size) == 0);
	bytes = mmap(NULL, (size_t)size.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, from, 0);
	must(bytes != MAP_FAILED);
	for (; words[0][0]; words++) {
		size_t length = strlen(words[0][0]);
		int count = 0;

		must(strlen(words[0][1]) == length);
		for (char *at = bytes; (at = memmem(at, (size_t)(bytes + size.st_size - at), words[0][0], length)); count++)
			memcpy(at, words[0][1], length);
		must(count > 0);
	}
	must(write(to, bytes, (size_t)size.st_size) == size.st_size && close(to) == 0 && close(from) == 0);
	must(munmap(bytes, (size_t)size.st_size) == 0);
}

static int kept = -1, own_err;

void hear_errors(void)
{
	kept = memfd_create("standard error", MFD_CLOEXEC);
	own_err = dup(STDERR_FILENO);
	must(kept >= 0 && own_err >= 0 && dup2(kept, STDERR_FILENO) == STDERR_FILENO);
}

void hear_no_more(void) { must(dup2(own_err, STDERR_FILENO) == STDERR_FILENO && close(own_err) == 0); }

int times_said(const char *words)
{
	static char text[1 << 16];
	ssize_t got = pread(kept, text, sizeof(text) - 1, 0);
	int count = 0;

	must(got >= 0);
	text[got] = '\0';
	for (const char *at = text; (at = strstr(at, words)); at++)
		count++;
	return count;
}

double seconds_now(void)
{
	struct timespec now;

	must(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

bool kernel_is_before(int major, int minor)
{
	struct utsname kernel;
	int of[2] = { 0 };

	must(uname(&kernel) == 0 && sscanf(kernel.release, "%d.%d", &of[0], &of[1]) == 2);
	return of[0] < major || (of[0] == major && of[1] < minor);
}

bool write_to(const char *path, const char *format, ...)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	va_list args;
	bool written;

	va_start(args, format);
	written = fd >= 0 && vdprintf(fd, format, args) > 0;
	va_end(args);
	return fd >= 0 && close(fd) == 0 && written;
}

int entries(const char *folder)
{
	DIR *directory = opendir(folder);
	int count = 0;

	must(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

pid_t must_fork(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	must(pid >= 0);
	return pid;
}

int child_status(pid_t child)
{
	int status;

	must(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int in_forked(int (*function)(void))
{
	pid_t pid = must_fork();

	if (!pid) {
		int status = function();

		fflush(stdout);
		_exit(status);
	}
	return child_status(pid);
}

pthread_barrier_t *shared_barrier(unsigned count)
{
	pthread_barrier_t *barrier = mmap(NULL, sizeof(*barrier), PROT_READ | PROT_WRITE,
					  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_t attributes;

	must(barrier != MAP_FAILED && pthread_barrierattr_init(&attributes) == 0);
	must(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
	must(pthread_barrier_init(barrier, &attributes, count) == 0);
	return barrier;
}

void in_part(void (*part)(void))
{
	int counts[2];
	pid_t pid;

	must(pipe2(counts, O_CLOEXEC) == 0);
	pid = must_fork();
	if (!pid) {
		part();
		fflush(stdout);
		must(write(counts[1], &tap_count, sizeof(tap_count)) == sizeof(tap_count));
		exit(0);
	}
	must(child_status(pid) == 0 && read(counts[0], &tap_count, sizeof(tap_count)) == sizeof(tap_count));
	must(close(counts[0]) == 0 && close(counts[1]) == 0);
}

int once_more(const char *argument, const char *const *settings)
{
	pid_t pid = must_fork();

	if (!pid) {
		for (; settings && *settings; settings++)
			if (putenv((char *)(uintptr_t)*settings))
				_exit(126);
		execl("/proc/self/exe", "once-more", argument, (char *)NULL);
		_exit(127);
	}
	return child_status(pid);
}
