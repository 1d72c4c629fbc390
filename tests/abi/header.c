/* The header by itself, twice, in a strict compiler; the program asks the library whether they belong
 * together. */
#include <kvc/kvc.h>
#include <kvc/kvc.h>
#include <stdio.h>

int main(void) {
  if (kvc_version() / 100 != KVC_VERSION / 100) {
    printf("the header is of version %d, the library of version %d\n", KVC_VERSION, (int)kvc_version());
    return 1;
  }
  if (kvc_status_name(KVC_OK) == NULL || kvc_status_name(12345) == NULL || kvc_last_error() == NULL) {
    printf("a text that is never NULL was NULL\n");
    return 1;
  }
  return 0;
}
