/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "rows.h"
#include <signal.h>
#include <sys/wait.h>

/* How a row's process ends, unless a signal or must() ends it. */
enum { PASSED = 0, FAILED = 3, GOES_ON = 4 };

const struct row *row;

static const char *name_of(const struct row *of, int call)
{
	static char name[300];

	snprintf(name, sizeof(name), "%s%s", of->name, !(of->flags & BOTH_CALLS) ? "" : call ? ", relaxed calls" : ", plain calls");
	return name;
}

/* The case's result; none if the row has passed and another process follows. */
static int result(void)
{
	int passed = getenv("CHECK_GOES_ON") && case_drop() ? GOES_ON : case_end() ? PASSED : FAILED;

	fflush(stdout);
	return passed;
}

void row_ends(void) { _exit(result()); }

void row_again(void)
{
	execl("/proc/self/exe", "again", (char *)NULL);
	must(!"execl");
	abort();
}

static void set(const char *settings)
{
	char *copy = strdup(settings ? settings : ""), *rest = copy, *setting;

	must(copy);
	while ((setting = strsep(&rest, " "))) {
		char *value = strchr(setting, '=');

		if (value)
			*value++ = '\0';
		must(!*setting || (value ? setenv(setting, value, 1) : unsetenv(setting)) == 0);
	}
	free(copy);
}

/* One process. Returns its status. */
static int start(char **argv, size_t number, int call, bool goes_on, const char *settings)
{
	char text[64];
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	must(pid >= 0);
	if (pid) {
		must(waitpid(pid, &status, 0) == pid);
		kill(-pid, SIGKILL);
		return status;
	}
	must(setpgid(0, 0) == 0);
	set(settings);
	if (row->flags & PLAIN_CALLS || (row->flags & BOTH_CALLS && !call))
		set("CHECK_CALLS=plain RDMAMR_CACHE=all");
	set(row->settings);
	set(goes_on ? "CHECK_GOES_ON=1" : "CHECK_GOES_ON");
	snprintf(text, sizeof(text), "CHECK_ROW=%zu CHECK_CALL=%d TAP_COUNT=%d", number, call, tap_count);
	set(text);
	alarm(DEADLOCK);
	execv("/proc/self/exe", argv);
	must(!"execv");
	return -1;
}

static void run(char **argv, size_t number, int call, const char *settings)
{
	const char *name = name_of(row, call);
	int status, left = row->times ? row->times : 1;

	do {
		status = start(argv, number, call, left > 1, settings);
	} while (--left && WIFEXITED(status) && WEXITSTATUS(status) == GOES_ON);
	tap_count++;
	if (WIFEXITED(status) && (WEXITSTATUS(status) == PASSED || WEXITSTATUS(status) == FAILED))
		return;
	printf("not ok %d - %s\n# its process ended %s %d%s\n", tap_count, name, WIFEXITED(status) ? "with" : "by signal",
	       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status),
	       WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? ": the time limit of a row" : "");
}

int run_rows(char **argv, const struct row *rows, size_t count, const char *settings, void (*around)(void))
{
	const char *number = getenv("CHECK_ROW");
	int found = 0;

	if (number) {
		row = &rows[atoi(number)];
		must(row < rows + count);
		continue_report();
		tap_in_row = true;
		case_begin("%s", name_of(row, atoi(getenv("CHECK_CALL"))));
		(around ? around : row->act)();
		exit(result());
	}
	for (row = rows; row < rows + count; row++)
		for (int call = 0; call < (row->flags & BOTH_CALLS ? 2 : 1); call++) {
			if (argv[1] && !strstr(name_of(row, call), argv[1]))
				continue;
			found++;
			run(argv, (size_t)(row - rows), call, settings);
		}
	must(found);
	return done_testing();
}
