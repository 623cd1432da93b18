# Read by login shells, and by other shells of bash through /etc/bash.bashrc; jobs get it from the shell that submits them.

# Debian's lmod.sh starts a dozen programs in each login shell; this starts none.
if [ -z "${MODULEPATH:-}" ]; then
    export MODULEPATH=/opt/modulefiles:/etc/lmod/modules:/usr/share/lmod/lmod/modulefiles/Core
    export BASH_ENV=/usr/share/lmod/lmod/init/bash
fi
if [ -n "${BASH_VERSION:-}" ]; then
    . /usr/share/lmod/lmod/init/bash
else
    . /usr/share/lmod/lmod/init/sh
fi

# Amazon's clients bring a list of authorities of their own, without that of the cloud's object storage.
export AWS_CA_BUNDLE="${AWS_CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}"

# People are root here unless they made other users: mpirun then works as well as srun.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
