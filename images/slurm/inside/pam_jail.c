/* Session module of sshd: programs of the session have at most what a tenant keeps (jail.h).
 *
 * sshd itself still needs to change the root directory of the session after this; it does so before it
 * executes anything, and every execution counts.
 */
#include "jail.h"

#define PAM_SUCCESS 0
#define PAM_SESSION_ERR 14

int pam_sm_open_session(void *handle, int flags, int argc, const char **argv)
{
	(void)handle;
	(void)flags;
	(void)argc;
	(void)argv;
	return limit_programs(TENANT_CAPABILITIES) ? PAM_SESSION_ERR : PAM_SUCCESS;
}

int pam_sm_close_session(void *handle, int flags, int argc, const char **argv)
{
	(void)handle;
	(void)flags;
	(void)argc;
	(void)argv;
	return PAM_SUCCESS;
}
