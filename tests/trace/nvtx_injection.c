// A tool of NVTX for the test of its ranges: NVTX_INJECTION64_PATH is this library. It writes a
// line for each range of a domain to the file NVTX_LINES. The types are those of
// nvtx3/nvToolsExt.h.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  int64_t payload;
  int32_t message_type;
  const char* message;  // registered
};

struct callbacks {
  size_t size;
  int (*table_of_module)(int module, void**** table, unsigned* size);
};

enum { kCallbacks = 1, kCore2 = 5, kCategories = 100 };
enum { kRangePush = 4, kRangePop = 5, kNameCategory = 8, kRegisterString = 10, kCreate = 12 };

static const char* categories[kCategories];
static FILE* lines;

static const char* name_of(const char* domain) { return domain ? domain : "NVTX"; }

static void* create(const char* name) { return strdup(name); }
static void* register_string(void* domain, const char* text) { return strdup(text); }
static void name_category(void* domain, uint32_t category, const char* name) {
  if (category < kCategories) categories[category] = strdup(name);
}
static int push(const char* domain, const struct attributes* a) {
  const char* category = a->category < kCategories ? categories[a->category] : NULL;
  return fprintf(lines, "+ %s|%s|%lld|%s\n", name_of(domain), a->message ? a->message : "",
                 (long long)a->payload, category ? category : "");
}
static int pop(const char* domain) { return fprintf(lines, "- %s\n", name_of(domain)); }

int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
  const struct callbacks* const callbacks = export_table(kCallbacks);
  void*** table;
  unsigned size;
  lines = fopen(getenv("NVTX_LINES"), "w");
  if (!lines || !callbacks || !callbacks->table_of_module(kCore2, &table, &size)) return 0;
  setlinebuf(lines);
  *table[kRangePush] = (void*)push;
  *table[kRangePop] = (void*)pop;
  *table[kNameCategory] = (void*)name_category;
  *table[kRegisterString] = (void*)register_string;
  *table[kCreate] = (void*)create;
  return 1;
}
