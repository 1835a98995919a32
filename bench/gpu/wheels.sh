# bash bench/gpu/wheels.sh [FOLDER]: what narwhal needs on the GPU machine and neither it nor the bundle has, for Python 3.12.
# Some 6 MB; with the bundle's 52 and the checkout it stays below what a call carries.
set -e
python3 -m pip download -q -d "${1:-.whl}" --no-deps --only-binary=:all: --python-version 3.12 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    annotated-doc click markdown-it-py mdurl prometheus-client pygments rich ruamel.yaml shellingham typer uvloop
ls -l "${1:-.whl}"
