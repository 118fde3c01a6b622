#!/usr/bin/env bash
# Trains the example models on real data and writes them, with calibration and test samples, beside this file.
# Needs the network: PyPI for a virtual environment, Debian's mirror for weka's copy of credit-g. Never part of
# demo or test, which use the committed files.
#
#   MNIST_DIR       folder of the MNIST IDX files (gzip); without it the digits are left as they are
#   WEKA_DIR        folder of credit-g.arff and diabetes.arff; without it, taken from Debian's package weka
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/build/models
python=$venv/bin/python

if [ ! -x "$python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
fi

weka=${WEKA_DIR:-$venv/weka}
if [ ! -e "$weka/credit-g.arff" ] || [ ! -e "$weka/diabetes.arff" ]; then
    fetched=$(mktemp -d)
    trap 'rm -rf "$fetched"' EXIT
    (cd "$fetched" && apt-get download -q weka >/dev/null && dpkg-deb -x weka_*.deb .)
    mkdir -p "$weka"
    cp "$fetched"/usr/share/doc/weka/examples/{credit-g,diabetes}.arff "$weka"
fi

# one thread, so that sums are taken in the same order every time
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
"$python" "$here/reference.py" # tests/data/onnx
"$python" "$here/opsets.py"    # tests/data/opsets
"$python" "$here/svm.py"       # tests/data/svm
"$python" "$here/breast_cancer.py"
"$python" "$here/credit_g.py" "$weka/credit-g.arff"
"$python" "$here/tables.py" "$weka" # also tests/data/tables
"$python" "$here/retrieval.py"
if [ -n "${MNIST_DIR:-}" ]; then
    "$python" "$here/mnist.py" "$MNIST_DIR"
    "$python" "$here/image_networks.py" "$MNIST_DIR"
else
    echo "mnist, lola, lenet: MNIST_DIR is not set, the committed models are kept"
fi
