/* shared-root: mount over the shared root, and show its folders to slurmd.
 *
 * Users own every folder and file in the shared root and may swap them for links at any moment, from another
 * node, too. So each path in it is walked one name at a time from a descriptor of /jail, no link is ever
 * followed, and mounts are put at the descriptor that was found, not at its path.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define JAIL "/jail"
#define SOCKET "/run/neocloud/folders.socket"
#define ASK_SECONDS 10
#define MAX_FOLDERS 256 /* at the top and in /opt: each that is shown is a mount of the host's kernel */
#define FOLDER (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* Of the kernel's headers, which may be older than the kernel. */
enum { CALL_OPEN_TREE = 428, CALL_MOVE_MOUNT = 429, CALL_MOUNT_SETATTR = 442 };
enum { TREE_CLONE = 1, TREE_RECURSIVE = 0x8000, FROM_DESCRIPTOR = 0x04, TO_DESCRIPTOR = 0x40 };
enum { ATTRIBUTE_READ_ONLY = 1, ATTRIBUTE_NO_DEVICES = 4 };
struct attributes {
	unsigned long long set, clear, propagation, userns;
};

static int failed(const char *what)
{
	fprintf(stderr, "shared-root: %s: %s\n", what, strerror(errno));
	return -1;
}

/* The folder at `path` of the shared root, or, with `last`, the one that holds it and the last name. */
static int walk(const char *path, int make, char last[NAME_MAX + 1])
{
	int here = open(JAIL, FOLDER), next;
	char name[NAME_MAX + 1];

	while (here >= 0 && *path) {
		size_t length = strcspn(path, "/");
		const char *rest = path + length + strspn(path + length, "/");

		if (!length || length > NAME_MAX) {
			path = rest;
			continue;
		}
		memcpy(name, path, length);
		name[length] = '\0';
		if (!strcmp(name, ".") || !strcmp(name, "..")) {
			errno = EINVAL;
			return -1;
		}
		path = rest;
		if (last && !*path) {
			strcpy(last, name);
			return here;
		}
		next = openat(here, name, FOLDER);
		if (next < 0 && errno == ENOENT && make && !mkdirat(here, name, 0755))
			next = openat(here, name, FOLDER);
		close(here);
		here = next;
	}
	if (here >= 0 && last) {
		errno = EINVAL;
		return -1;
	}
	return here;
}

/* A regular file to mount at; what lies there instead is replaced, unless it is a folder. */
static int file_at(const char *path)
{
	char name[NAME_MAX + 1];
	int folder = walk(path, 1, name), made;
	struct stat about;

	if (folder < 0)
		return -1;
	if (fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) || !S_ISREG(about.st_mode)) {
		unlinkat(folder, name, 0);
		made = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
		if (made < 0)
			return -1;
		close(made);
	}
	return openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

static int attach(int tree, int target)
{
	return syscall(CALL_MOVE_MOUNT, tree, "", target, "", FROM_DESCRIPTOR | TO_DESCRIPTOR);
}

static int bind_at(const char *source, const char *path, unsigned long long set)
{
	struct attributes attributes = {set, 0, 0, 0};
	struct stat about, target_about;
	int tree, target;

	if (stat(source, &about))
		return failed(source);
	target = S_ISDIR(about.st_mode) ? walk(path, 1, NULL) : file_at(path);
	if (target < 0 || fstat(target, &target_about))
		return failed(path);
	if (!S_ISDIR(about.st_mode) && !S_ISREG(target_about.st_mode)) {
		errno = ELOOP;
		return failed(path);
	}
	tree = syscall(CALL_OPEN_TREE, AT_FDCWD, source, TREE_CLONE | TREE_RECURSIVE | O_CLOEXEC);
	if (tree < 0)
		return failed(source);
	if (set && syscall(CALL_MOUNT_SETATTR, tree, "", AT_EMPTY_PATH | TREE_RECURSIVE, &attributes,
			   sizeof attributes))
		return failed("cannot set attributes");
	return attach(tree, target) ? failed(path) : 0;
}

static int memory_at(const char *path, const char *options)
{
	char place[64];
	int target = walk(path, 1, NULL);

	if (target < 0)
		return failed(path);
	snprintf(place, sizeof place, "/proc/self/fd/%d", target);
	return mount("tmpfs", place, "tmpfs", MS_NOSUID, options) ? failed(path) : 0;
}

static int link_at(const char *text, const char *path)
{
	char name[NAME_MAX + 1];
	int folder = walk(path, 1, name);

	return folder < 0 || symlinkat(text, folder, name) ? failed(path) : 0;
}

/* A new file with the time in it, in place of whatever lies there. */
static int stamp_at(const char *path)
{
	char name[NAME_MAX + 1], text[32];
	int folder = walk(path, 1, name), file;
	int length = snprintf(text, sizeof text, "%lld\n", (long long)time(NULL));

	if (folder < 0)
		return failed(path);
	unlinkat(folder, name, 0);
	file = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (file < 0 || write(file, text, length) != length || close(file))
		return failed(path);
	return 0;
}

static int run_in(const char *path, char *command[])
{
	int folder = walk(path, 1, NULL);

	if (folder < 0 || openat(folder, ".", FOLDER) < 0 || fchdir(folder))
		return failed(path);
	execvp(command[0], command);
	return failed(command[0]);
}

/* Folders of the daemons' root; those of the shared root by these names are never shown over them. */
static int is_of_daemons(const char *name)
{
	static const char *names[] = {
		".", "..", "bin", "boot", "dev", "etc", "jail", "opt", "proc", "run", "sbin", "sys", "tmp",
		"usr", "var", NULL,
	};

	for (const char **each = names; *each; each++)
		if (!strcmp(name, *each))
			return 1;
	return !strncmp(name, "lib", 3);
}

/* Make a folder of the shared root appear at the same path in the daemons' root. */
static void show(int parent, const char *name, const char *path)
{
	int folder = openat(parent, name, FOLDER), tree;
	struct stat there, here;

	if (folder < 0)
		return; /* a file, a link, or gone again */
	if (!fstat(folder, &there) &&
	    (lstat(path, &here) || here.st_dev != there.st_dev || here.st_ino != there.st_ino)) {
		umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW); /* its folder was deleted and made again */
		mkdir(path, 0755);
		tree = syscall(CALL_OPEN_TREE, folder, "",
			       TREE_CLONE | TREE_RECURSIVE | AT_EMPTY_PATH | O_CLOEXEC);
		if (tree < 0 || syscall(CALL_MOVE_MOUNT, tree, "", AT_FDCWD, path, FROM_DESCRIPTOR))
			failed(path);
		if (tree >= 0)
			close(tree);
	}
	close(folder);
}

/* The folders of a folder of the shared root, at the same paths below `prefix`. */
static int show_all(int folder, const char *prefix, int (*is_skipped)(const char *))
{
	char path[16 + NAME_MAX];
	struct dirent *entry;
	int shown = 0;
	DIR *entries = folder < 0 ? NULL : fdopendir(folder);

	if (!entries)
		return -1;
	while ((entry = readdir(entries)) && shown < MAX_FOLDERS)
		if (!is_skipped(entry->d_name)) {
			shown++;
			snprintf(path, sizeof path, "%s/%s", prefix, entry->d_name);
			show(folder, entry->d_name, path);
		}
	closedir(entries);
	return 0;
}

/* /opt as a whole would bring a tenant's /opt/slurm, from which daemons load plugins. */
static int is_of_opt(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..") || !strcmp(name, "slurm");
}

static int show_folders(void)
{
	int jail = open(JAIL, FOLDER), var;
	int top = open(JAIL, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (jail < 0 || show_all(top, "", is_of_daemons))
		return failed(JAIL);
	show_all(openat(jail, "opt", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), "/opt", is_of_opt);
	var = openat(jail, "var", FOLDER);
	if (var >= 0) {
		show(var, "tmp", "/var/tmp");
		close(var);
	}
	close(jail);
	return 0;
}

static int unix_socket(struct sockaddr_un *address)
{
	memset(address, 0, sizeof *address);
	address->sun_family = AF_UNIX;
	strcpy(address->sun_path, SOCKET);
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* slurmd may not mount, so its Prolog asks this process to look for new folders. */
static int serve(void)
{
	struct sockaddr_un address;
	int listener = unix_socket(&address), asker;

	unlink(SOCKET);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) ||
	    chmod(SOCKET, 0600) || listen(listener, 64))
		return failed(SOCKET);
	if (daemon(0, 1))
		return failed("cannot go to the background");
	for (;;) {
		asker = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (asker < 0)
			continue;
		show_folders();
		close(asker);
	}
}

static int ask(void)
{
	struct sockaddr_un address;
	struct timeval patience = {ASK_SECONDS, 0};
	int server = unix_socket(&address);
	char none;

	setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof address) ||
	    read(server, &none, 1) < 0)
		return failed(SOCKET);
	return 0;
}

static int run(int count, char *words[])
{
	const char *what = words[0];

	if (count == 3 && !strcmp(what, "bind"))
		return bind_at(words[1], words[2], 0);
	if (count == 3 && !strcmp(what, "bind-read-only"))
		return bind_at(words[1], words[2], ATTRIBUTE_READ_ONLY);
	if (count == 3 && !strcmp(what, "bind-no-devices"))
		return bind_at(words[1], words[2], ATTRIBUTE_NO_DEVICES);
	if (count == 3 && !strcmp(what, "memory"))
		return memory_at(words[1], words[2]);
	if (count == 3 && !strcmp(what, "link"))
		return link_at(words[1], words[2]);
	if (count == 2 && !strcmp(what, "stamp"))
		return stamp_at(words[1]);
	if (count >= 3 && !strcmp(what, "in"))
		return run_in(words[1], words + 2);
	if (count == 1 && !strcmp(what, "show-folders"))
		return show_folders();
	if (count == 1 && !strcmp(what, "serve"))
		return serve();
	if (count == 1 && !strcmp(what, "ask"))
		return ask();
	fprintf(stderr, "usage: shared-root bind|bind-read-only|bind-no-devices SOURCE PATH\n"
			"       shared-root memory PATH OPTIONS | link TEXT PATH | stamp PATH\n"
			"       shared-root in PATH COMMAND... | show-folders | serve | ask\n");
	return -1;
}

int main(int argc, char *argv[])
{
	static char *nothing[] = {"", NULL};

	umask(022);
	return run(argc > 1 ? argc - 1 : 1, argc > 1 ? argv + 1 : nothing) ? 1 : 0;
}
