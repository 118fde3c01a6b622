/* Operators that are not in the table: why they cannot run encrypted, and what to do instead. */
#include "client/compile/operator.h"

#include <string.h>

#define DISTIL                                                                                               \
    "distil it into a small network: let it score the training rows and many copies with some columns "      \
    "exchanged between rows, train an MLP on these scores (scikit-learn: MLPRegressor, two layers of 32 to " \
    "64; torch: SiLU), and export that"
#define FLOAT_MODEL                                                                                          \
    "export the model before quantisation: encrypted numbers are real, so it is neither slower nor larger"
#define QUANTISED "quantised numbers are rounded, and polynomials do not round"
#define RECURRENT "steps that feed each other are as many levels, more than there are"
#define FEED_FORWARD                                                                                         \
    "use one-dimensional convolutions over the sequence, or a dense network on features of it"
#define TF_FUNCTION "a function of TensorFlow that the exporter left as it is, and no operator"
#define TF_INLINED                                                                                           \
    "export with the torch backend (KERAS_BACKEND=torch; .keras files load there), or write the layer with " \
    "others: a convolution with groups as one for each group and Concatenate"

#define PAIRWISE                                                                                             \
    "unroll it before export, if it has few steps. Distances to stored rows (scikit-learn's Gaussian "       \
    "processes, kernels, neighbours): train SVR or SVC with an RBF kernel, which runs encrypted, or distil " \
    "the model into an MLP that is trained on its predictions"
#define KNN_IMPUTER                                                                                          \
    "impute before encryption: SimpleImputer in the pipeline in its place, which becomes a step of the "     \
    "client; or fill the rows in with KNNImputer.transform, and export the pipeline's later steps alone "    \
    "(pipeline[1:], trained as it is)"

typedef struct refusal_row {
    const char *type, *reason, *way_out;
} refusal_row;

static const refusal_row rows[] = {
    {"Hardmax", "encrypted numbers cannot be compared", "end the model at the scores: the client compares"},
    {"TopK", "encrypted numbers cannot be compared", "end the model at the scores: the client sorts"},
    {"NonMaxSuppression", "encrypted numbers cannot be compared",
     "end the model at the boxes and scores: the client selects"},
    {"ThresholdedRelu", "it jumps, and polynomials do not", "use Relu or x*Sigmoid(x) and train again"},
    {"Shrink", "it jumps, and polynomials do not", "use x*Sigmoid(x) and train again"},
    {"LSTM", RECURRENT, FEED_FORWARD},
    {"GRU", RECURRENT, FEED_FORWARD},
    {"RNN", RECURRENT, FEED_FORWARD},
    {"Scan", RECURRENT, PAIRWISE},
    {"Loop", "how often it runs may depend on encrypted data", "unroll it before export (torch: trace)"},
    {"If", "a branch on encrypted data cannot be taken", "export the branch that inference takes"},
    {"Attention", "scores between positions are softmaxed, which divides by encrypted values",
     "use convolutions or a linear attention without a softmax"},
    {"SequenceConstruct", "a list of results of several models",
     "export each as a model of its own (scikit-learn's MultiOutputClassifier: each of its estimators_)"},
    {"StatefulPartitionedCall", TF_FUNCTION, TF_INLINED},
    {"PartitionedCall", TF_FUNCTION, TF_INLINED},
    {"RandomNormal", "it gives other numbers each time", "export the model in evaluation mode"},
    {"RandomUniform", "it gives other numbers each time", "export the model in evaluation mode"},
    {"QuantizeLinear", QUANTISED, FLOAT_MODEL},
    {"DequantizeLinear", QUANTISED, FLOAT_MODEL},
    {"DynamicQuantizeLinear", QUANTISED, FLOAT_MODEL},
    {"QLinearConv", QUANTISED, FLOAT_MODEL},
    {"QLinearMatMul", QUANTISED, FLOAT_MODEL},
    {"ConvInteger", QUANTISED, FLOAT_MODEL},
    {"MatMulInteger", QUANTISED, FLOAT_MODEL},
    {"ai.onnx.ml.TreeEnsemble", "trees compare, which encrypted numbers cannot", DISTIL},
    {"ai.onnx.ml.TreeEnsembleClassifier", "trees compare, which encrypted numbers cannot", DISTIL},
    {"ai.onnx.ml.TreeEnsembleRegressor", "trees compare, which encrypted numbers cannot", DISTIL},
};

static bool has_prefix(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* also those of other sets: com.microsoft.QLinearAdd, QGemm */
static bool is_quantised(const char *type) {
    const char *name = strrchr(type, '.') ? strrchr(type, '.') + 1 : type;
    return has_prefix(name, "QLinear") || has_prefix(name, "QGemm") || has_prefix(name, "QAttention") ||
           strstr(name, "QuantizeLinear");
}

/* KNNImputer as skl2onnx writes it: functions of the file's own */
static bool is_knn_imputer(const char *type) {
    const char *name = strrchr(type, '.') ? strrchr(type, '.') + 1 : type;
    return has_prefix(name, "knn_imputer") || has_prefix(name, "dist_nan_euclidean") ||
           has_prefix(name, "calc_impute") || has_prefix(name, "dict_idx_map");
}

void operator_way_out(const char *type, const char **reason, const char **way_out) {
    *reason = "this operator is not compiled";
    *way_out =
        "write it with Gemm, MatMul, Conv, Add, Sub, Mul, Reshape and an activation, or take it out of "
        "the model and apply it before encryption";
    if (strchr(type, '.') && !has_prefix(type, "ai.onnx")) {
        *reason = "an operator of another set than ONNX's own is not compiled";
        *way_out =
            "export for plain ONNX, without fused operators: with Gemm, MatMul, Conv, Add, Mul, Reshape "
            "and an activation";
    }
    if (is_knn_imputer(type))
        *reason = "KNNImputer looks for rows that are near, which encrypted numbers do not show",
        *way_out = KNN_IMPUTER;
    if (is_quantised(type)) *reason = QUANTISED, *way_out = FLOAT_MODEL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].type, type) == 0) *reason = rows[i].reason, *way_out = rows[i].way_out;
}

/* The rest of the table of operators: what is refused with a way out of its own. */
uint32_t operator_refusals(uint32_t index, const char **type, const char **reason, const char **way_out) {
    const uint32_t count = sizeof rows / sizeof *rows;
    if (index < count) *type = rows[index].type, *reason = rows[index].reason, *way_out = rows[index].way_out;
    return count;
}
