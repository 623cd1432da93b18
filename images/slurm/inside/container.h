/* What the job plugin asks container-roots: a header, then words that end with a zero byte each.
 *
 * The words: "rw" or "ro"; the folder of the image; the folder with the container's own "upper", "work" and
 * "root"; then four for each mount: "bind" (one that must succeed), "try", "tmpfs" or "umount"; source; path in
 * the container; flags with "+" between them. The answer is one zero byte with two descriptors, the container's
 * root and the same without mounts; or a message. The container stays as long as the connection.
 */
#ifndef NEOCLOUD_CONTAINER_H
#define NEOCLOUD_CONTAINER_H

#define CONTAINER_SOCKET "/run/neocloud/containers.socket"
#define CONTAINER_REQUEST (256 * 1024)
#define CONTAINER_MESSAGE 1024
#define CONTAINER_GROUPS 64

struct container_header {
	unsigned int uid, gid, group_count, groups[CONTAINER_GROUPS];
	unsigned int job, length; /* of the words, in bytes */
	char key[96];        /* a user's steps with the same one share a container; none where it is empty */
};

#define JOB_ROOT 48

extern char job_root[JOB_ROOT]; /* of spank_jail.c: what tasks see as "/" */
void say_what_ended_for_memory(void);
int enter_container(void);     /* of container.c: 1 when the task is in one, 0 when the step has none */

#endif
