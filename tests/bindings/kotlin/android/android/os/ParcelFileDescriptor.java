package android.os;

public class ParcelFileDescriptor {
  public int getFd() {
    return -1;
  }
}
