/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_NOISE_IMAGES_H
#define TESTS_SUPPORT_NOISE_IMAGES_H

/* Images to train on, the same in each run: a new folder with one CIFAR-10 file of 40 images of
 * noise. Heap text; job_run_remove() deletes the folder. Asserts that the file can be written. */
char *noise_images_folder(void);

#endif
