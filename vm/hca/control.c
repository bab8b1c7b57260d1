// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/rdmamr-hca: one write is one command, whose failure is write()'s errno; what it answers is
 * read from the same descriptor. README.md lists the commands.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "hca.h"

enum {
	LOG_LINES = 1 << 17,
	COMMAND_SIZE = 1 << 18,
	SHOWN_BYTES = 64,
};

const char *const hca_verb_names[HCA_VERB_COUNT] = {
#define X(name) #name,
	HCA_VERBS(X)
#undef X
};

/* Failures on demand. */

int hca_injected(struct hca_slot *slot, enum hca_verb verb)
{
	struct hca_failure *failure = &slot->failures[verb];
	int error = 0;

	spin_lock(&slot->small_lock);
	if (failure->left) {
		failure->left--;
		error = -failure->error;
	}
	spin_unlock(&slot->small_lock);
	return error;
}

/* The log. */

struct line {
	struct list_head entry;
	size_t length;
	char text[];
};

static void say(struct hca_slot *slot, const char *format, va_list arguments)
{
	struct line *line, *oldest = NULL;
	va_list again;
	int length;

	va_copy(again, arguments);
	length = vsnprintf(NULL, 0, format, again);
	va_end(again);
	line = kmalloc(sizeof(*line) + length + 2, GFP_KERNEL);
	if (!line)
		return;
	vsnprintf(line->text, length + 1, format, arguments);
	line->text[length] = '\n';
	line->text[length + 1] = 0;
	line->length = length + 1;

	spin_lock(&slot->small_lock);
	list_add_tail(&line->entry, &slot->log);
	if (slot->log_lines < LOG_LINES) {
		slot->log_lines++;
	} else {
		oldest = list_first_entry(&slot->log, struct line, entry);
		list_del(&oldest->entry);
		slot->log_lost++;
	}
	spin_unlock(&slot->small_lock);
	kfree(oldest);
}

void hca_say(struct hca_slot *slot, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(slot, format, arguments);
	va_end(arguments);
}

/* The private bytes, as "in=8:0000000000000000 out=4". */
static const char *show_udata(char *text, size_t size, struct ib_udata *udata)
{
	u8 bytes[SHOWN_BYTES];
	char hex[2 * SHOWN_BYTES + 1] = "";
	size_t length = udata ? udata->inlen : 0;
	size_t shown = min_t(size_t, length, SHOWN_BYTES);

	if (shown && !ib_copy_from_udata(bytes, udata, shown))
		*bin2hex(hex, bytes, shown) = 0;
	snprintf(text, size, "in=%zu:%s out=%zu", length, hex, udata ? udata->outlen : 0);
	return text;
}

void hca_say_udata(struct hca_slot *slot, enum hca_verb verb, struct ib_udata *udata, int error)
{
	char text[2 * SHOWN_BYTES + 64];

	hca_say(slot, "%s %s = %d", hca_verb_names[verb], show_udata(text, sizeof(text), udata), error);
}

void hca_say_request(struct hca_slot *slot, const struct hca_request *request, int error, u32 lkey,
		     u32 rkey)
{
	char text[2 * SHOWN_BYTES + 64], rereg[48] = "";

	if (request->verb == HCA_rereg_mr)
		snprintf(rereg, sizeof(rereg), "of=%#x flags=%#x ", request->key, request->flags);
	hca_say(slot, "%s %sstart=%#llx length=%#llx iova=%#llx access=%#x %s = %d lkey=%#x rkey=%#x",
		hca_verb_names[request->verb], rereg, request->start, request->length,
		request->iova, request->access, show_udata(text, sizeof(text), request->udata),
		error, lkey, rkey);
}

/* Takes the lines out, and says how long they are together. */
static size_t take_log(struct hca_slot *slot, struct list_head *lines, size_t *lost)
{
	struct line *line;
	size_t size = 0;

	spin_lock(&slot->small_lock);
	list_splice_init(&slot->log, lines);
	*lost = slot->log_lost;
	slot->log_lines = slot->log_lost = 0;
	spin_unlock(&slot->small_lock);
	list_for_each_entry(line, lines, entry)
		size += line->length;
	return size;
}

void hca_forget_log(struct hca_slot *slot)
{
	struct line *line, *next;
	LIST_HEAD(lines);
	size_t lost;

	take_log(slot, &lines, &lost);
	list_for_each_entry_safe(line, next, &lines, entry)
		kfree(line);
}

/* Commands. */

struct console {
	struct mutex lock;
	char *answer;
	size_t size;
};

struct command {
	const char *name;
	int words; /* behind the name of the device */
	int (*run)(struct hca_slot *slot, char **words, struct console *console);
};

static int run_log(struct hca_slot *slot, char **words, struct console *console)
{
	struct line *line, *next;
	LIST_HEAD(lines);
	size_t lost, size = take_log(slot, &lines, &lost);
	char *at = kvmalloc(size + 32, GFP_KERNEL);

	console->answer = at;
	if (at && lost)
		at += sprintf(at, "lost %zu lines\n", lost);
	list_for_each_entry_safe(line, next, &lines, entry) {
		if (at) {
			memcpy(at, line->text, line->length);
			at += line->length;
		}
		kfree(line);
	}
	console->size = at ? at - console->answer : 0;
	return at ? 0 : -ENOMEM;
}

static int run_fail(struct hca_slot *slot, char **words, struct console *console)
{
	struct hca_failure failure;
	int verb = match_string(hca_verb_names, HCA_VERB_COUNT, words[0]);

	if (verb < 0 || kstrtoint(words[1], 0, &failure.error) ||
	    kstrtouint(words[2], 0, &failure.left) || failure.error <= 0 ||
	    failure.error > MAX_ERRNO)
		return -EINVAL;
	spin_lock(&slot->small_lock);
	slot->failures[verb] = failure;
	spin_unlock(&slot->small_lock);
	return 0;
}

/* The core answers ibv_query_device() from a copy of its own. */
static int run_set(struct hca_slot *slot, char **words, struct console *console)
{
	u64 value;

	if (kstrtou64(words[1], 0, &value))
		return -EINVAL;
	if (!strcmp(words[0], "max_mr"))
		slot->max_mr = min_t(u64, value, INT_MAX);
	else if (!strcmp(words[0], "max_mr_size"))
		slot->max_mr_size = value;
	else
		return -EINVAL;
	if (slot->device) {
		slot->device->ib.attrs.max_mr = slot->max_mr;
		slot->device->ib.attrs.max_mr_size = slot->max_mr_size;
	}
	return 0;
}

static int run_keys(struct hca_slot *slot, char **words, struct console *console)
{
	console->answer = kvmalloc(16, GFP_KERNEL);
	if (!console->answer)
		return -ENOMEM;
	console->size = sprintf(console->answer, "%u\n", slot->live_keys);
	return 0;
}

static int read_through(struct hca_slot *slot, char **words, struct console *console, int needs)
{
	size_t size;
	u64 iova;
	u32 key;
	u8 *data;
	int error;

	if (kstrtou32(words[0], 0, &key) || kstrtou64(words[1], 0, &iova) ||
	    kstrtoul(words[2], 0, &size) || size > COMMAND_SIZE / 2)
		return -EINVAL;
	data = kvmalloc(size, GFP_KERNEL);
	console->answer = kvmalloc(2 * size + 1, GFP_KERNEL);
	error = data && console->answer ?
		hca_through(slot, key, iova, data, size, false, needs) : -ENOMEM;
	if (!error) {
		*bin2hex(console->answer, data, size) = '\n';
		console->size = 2 * size + 1;
	}
	kvfree(data);
	return error;
}

static int write_through(struct hca_slot *slot, char **words, int needs)
{
	size_t size = strlen(words[2]) / 2;
	u64 iova;
	u32 key;
	u8 *data;
	int error;

	if (kstrtou32(words[0], 0, &key) || kstrtou64(words[1], 0, &iova))
		return -EINVAL;
	data = kvmalloc(size, GFP_KERNEL);
	if (!data)
		return -ENOMEM;
	error = hex2bin(data, words[2], size) ? -EINVAL :
		hca_through(slot, key, iova, data, size, true, needs);
	kvfree(data);
	return error;
}

static int run_read(struct hca_slot *slot, char **words, struct console *console)
{
	return read_through(slot, words, console, 0);
}

static int run_remote_read(struct hca_slot *slot, char **words, struct console *console)
{
	return read_through(slot, words, console, IB_ACCESS_REMOTE_READ);
}

static int run_write(struct hca_slot *slot, char **words, struct console *console)
{
	return write_through(slot, words, IB_ACCESS_LOCAL_WRITE);
}

static int run_remote_write(struct hca_slot *slot, char **words, struct console *console)
{
	return write_through(slot, words, IB_ACCESS_REMOTE_WRITE);
}

static const struct command commands[] = {
	{ "log", 0, run_log },
	{ "keys", 0, run_keys },
	{ "fail", 3, run_fail },
	{ "set", 2, run_set },
	{ "read", 3, run_read },
	{ "write", 3, run_write },
	{ "remote-read", 3, run_remote_read },
	{ "remote-write", 3, run_remote_write },
};

static int run(char *text, struct console *console)
{
	char *words[6] = {}, *word;
	struct hca_slot *slot;
	size_t count = 0, i;
	int error;

	text = strim(text);
	while ((word = strsep(&text, " "))) {
		if (count == ARRAY_SIZE(words))
			return -EINVAL;
		words[count++] = word;
	}
	if (count < 2)
		return -EINVAL;
	if (count == 2 && !strcmp(words[0], "add"))
		return hca_add(words[1]);
	if (count == 2 && !strcmp(words[0], "remove"))
		return hca_remove(words[1]);
	for (i = 0; i < ARRAY_SIZE(commands); i++) {
		if (strcmp(words[0], commands[i].name) || count != commands[i].words + 2)
			continue;
		mutex_lock(&hca_slots_lock);
		slot = hca_find(words[1]);
		error = slot ? commands[i].run(slot, words + 2, console) : -ENODEV;
		mutex_unlock(&hca_slots_lock);
		return error;
	}
	return -EINVAL;
}

static int console_open(struct inode *inode, struct file *file)
{
	struct console *console = kzalloc(sizeof(*console), GFP_KERNEL);

	if (!console)
		return -ENOMEM;
	mutex_init(&console->lock);
	file->private_data = console;
	return 0;
}

static int console_release(struct inode *inode, struct file *file)
{
	struct console *console = file->private_data;

	kvfree(console->answer);
	kfree(console);
	return 0;
}

static ssize_t console_write(struct file *file, const char __user *text, size_t size, loff_t *at)
{
	struct console *console = file->private_data;
	char *copy;
	int error;

	if (size > COMMAND_SIZE)
		return -E2BIG;
	copy = kvmalloc(size + 1, GFP_KERNEL);
	if (!copy)
		return -ENOMEM;
	error = copy_from_user(copy, text, size) ? -EFAULT : 0;
	copy[size] = 0;
	mutex_lock(&console->lock);
	if (!error) {
		kvfree(console->answer);
		console->answer = NULL;
		console->size = 0;
		error = run(copy, console);
	}
	mutex_unlock(&console->lock);
	kvfree(copy);
	if (error)
		return error;
	*at = 0;
	return size;
}

static ssize_t console_read(struct file *file, char __user *text, size_t size, loff_t *at)
{
	struct console *console = file->private_data;
	ssize_t done;

	mutex_lock(&console->lock);
	done = simple_read_from_buffer(text, size, at, console->answer, console->size);
	mutex_unlock(&console->lock);
	return done;
}

static const struct file_operations console_operations = {
	.owner = THIS_MODULE,
	.open = console_open,
	.release = console_release,
	.write = console_write,
	.read = console_read,
	.llseek = noop_llseek,
};

static struct miscdevice console_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "rdmamr-hca",
	.mode = 0666,
	.fops = &console_operations,
};

int hca_control_init(void)
{
	return misc_register(&console_device);
}

void hca_control_exit(void)
{
	misc_deregister(&console_device);
}
