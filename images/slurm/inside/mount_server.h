/* What slurmd and its job plugin, which may not mount, ask of the process that may: `shared-root serve`.
 *
 * A request is one line: "folders", "job ID MIB" or "end ID". The answer is one byte, or the end of the
 * connection when it could not be done.
 */
#ifndef NEOCLOUD_MOUNT_SERVER_H
#define NEOCLOUD_MOUNT_SERVER_H

#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET "/run/neocloud/folders.socket"
#define JOBS "/run/neocloud/jobs" /* the root of job 7 is JOBS "/7" */
#define ASK_SECONDS 10
#define LONGEST_REQUEST 64

static int unix_socket(struct sockaddr_un *address)
{
	memset(address, 0, sizeof *address);
	address->sun_family = AF_UNIX;
	strcpy(address->sun_path, SOCKET);
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* 0 when it was done. */
static int ask_to_mount(const char *request)
{
	struct sockaddr_un address;
	struct timeval patience = {ASK_SECONDS, 0};
	int server = unix_socket(&address), done;
	char answer;

	if (server < 0)
		return -1;
	setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	done = !connect(server, (struct sockaddr *)&address, sizeof address) &&
	       send(server, request, strlen(request), MSG_NOSIGNAL) == (ssize_t)strlen(request) &&
	       read(server, &answer, 1) == 1;
	close(server);
	return done ? 0 : -1;
}

#endif
