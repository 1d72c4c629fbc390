/* A library of a version that there never was: for Java and C#, and to be loaded before libkvc for Go and
 * Python; with KVC_FOREIGN one that is not libkvc's at all. */
#ifdef KVC_FOREIGN
int kvc_nothing_of_it(void);
int kvc_nothing_of_it(void) { return 0; }
#else
int Java_dev_kvc_FlatJNI_kvc_1version(void* env, void* type);
int Java_dev_kvc_FlatJNI_kvc_1version(void* env, void* type) { return env && type ? 990000 : 0; }
int CSharp_Kvc_kvc_version(void);
int CSharp_Kvc_kvc_version(void) { return 990000; }
int kvc_version(void);
int kvc_version(void) { return 990000; }
#endif
