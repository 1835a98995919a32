# Source this on the GPU machine after ../shared/gpu's bundle is in .gpu and narwhal's missing wheels are in .whl.
# It installs both once, makes an environment whose python is the machine's with the bundle, and puts narwhal on the path.
[ -e /tmp/site/.ready ] || bash .gpu/dev/install.sh || exit 1
. /tmp/dev/env.sh
if [ ! -e /tmp/narwhal-site/.ready ]; then
    env -u PYTHONPATH "$PY" -m pip install -q --no-index --no-deps --no-cache-dir --target /tmp/narwhal-site .whl/*.whl || exit 1
    touch /tmp/narwhal-site/.ready
fi
mkdir -p /tmp/engine-venv/bin
cat > /tmp/engine-venv/bin/python <<'SH'
#!/bin/bash
. /tmp/dev/env.sh
exec python3 "$@"
SH
chmod +x /tmp/engine-venv/bin/python
# narwhal's own packages come last: what the bundle has is what vLLM was built for
export PYTHONPATH="$PWD:$SITE:/tmp/narwhal-site"
export NARWHAL_HOME=/tmp/narwhal-home
ulimit -n 65536 2>/dev/null || true
