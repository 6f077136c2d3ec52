/* Translates standard input with an exported model, through TensorFlow's C API alone.

   serving_c_api DIRECTORY TEXT TRANSLATION SCORE [LIBRARY...] < sentences

   TEXT, TRANSLATION and SCORE name the signature's tensors as saved_model.pb does, operation:index.
   Each LIBRARY holds operations to register. All sentences, a line each, go in as one batch. For
   each of them comes the score, the number of bytes of its translation, and the translation. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

enum { MAX_SENTENCES = 1000 };

static void check(TF_Status *status, const char *what) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s: %s\n", what, TF_Message(status));
  exit(1);
}

static TF_Output find(TF_Graph *graph, char *name) {
  char *colon = strrchr(name, ':');
  TF_Output output = {NULL, 0};
  if (colon != NULL) {
    *colon = '\0';
    output.index = atoi(colon + 1);
    output.oper = TF_GraphOperationByName(graph, name);
  }
  if (output.oper == NULL) {
    fprintf(stderr, "no tensor %s\n", name);
    exit(1);
  }
  return output;
}

/* A string tensor of the lines of `file`, without their ends. */
static TF_Tensor *read_sentences(FILE *file) {
  static char *lines[MAX_SENTENCES];
  static size_t lengths[MAX_SENTENCES];
  int64_t count = 0;
  size_t capacity = 0;
  ssize_t length;
  while (count < MAX_SENTENCES && (length = getline(&lines[count], &capacity, file)) >= 0) {
    if (length > 0 && lines[count][length - 1] == '\n') --length;
    lengths[count++] = (size_t)length;
    capacity = 0;
  }
  TF_Tensor *tensor = TF_AllocateTensor(TF_STRING, &count, 1, count * sizeof(TF_TString));
  TF_TString *strings = TF_TensorData(tensor);
  for (int64_t i = 0; i < count; ++i) {
    TF_StringInit(&strings[i]);
    TF_StringCopy(&strings[i], lines[i], lengths[i]);
    free(lines[i]);
  }
  return tensor;
}

int main(int argc, char **argv) {
  if (argc < 5) {
    fprintf(stderr, "usage: %s DIRECTORY TEXT TRANSLATION SCORE [LIBRARY...]\n", argv[0]);
    return 2;
  }
  TF_Status *status = TF_NewStatus();
  for (int i = 5; i < argc; ++i) {
    TF_LoadLibrary(argv[i], status);
    check(status, argv[i]);
  }

  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  const char *tags[] = {"serve"};
  TF_Session *session =
      TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  check(status, argv[1]);

  TF_Output inputs[] = {find(graph, argv[2])};
  TF_Output outputs[] = {find(graph, argv[3]), find(graph, argv[4])};
  TF_Tensor *values[] = {read_sentences(stdin)};
  TF_Tensor *results[] = {NULL, NULL};
  TF_SessionRun(session, NULL, inputs, values, 1, outputs, results, 2, NULL, 0, NULL, status);
  check(status, "run");

  const TF_TString *translations = TF_TensorData(results[0]);
  const float *scores = TF_TensorData(results[1]);
  for (int64_t i = 0; i < TF_Dim(results[0], 0); ++i) {
    size_t size = TF_StringGetSize(&translations[i]);
    printf("%.6f\t%zu\t", scores[i], size);
    fwrite(TF_StringGetDataPointer(&translations[i]), 1, size, stdout);
    putchar('\n');
  }

  TF_DeleteTensor(values[0]);
  TF_DeleteTensor(results[0]);
  TF_DeleteTensor(results[1]);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
