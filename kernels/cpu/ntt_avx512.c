#include "kernels/cpu/ntt_lanes.h"
